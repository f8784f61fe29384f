"""What work groups need from disk, read on the replay's thread: frames, and where they start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from meshmsg import _platform
from meshmsg._groups.seat import Seat, Seats
from meshmsg._model.errors import LogError, ProtocolError
from meshmsg._publish.durable_streams import DurableSide
from meshmsg._publish.streams import Streams
from meshmsg._wire.control import Start
from meshmsg._wire.frame import Frame
from meshmsg.recovery.groups.numbering import Line, Part, Past

log = logging.getLogger("meshmsg.peer")

#: Read at once for a group, which asks on when it has used that up: others wait meanwhile.
FETCH_BYTES_MAX = 2 * 1024 * 1024
FETCH_FRAMES_MAX = 1000
FETCH_PARTS_MAX = 1000


class GroupDisk:
    """Reads for groups."""

    def __init__(
        self,
        streams: Streams,
        seats: Seats,
        durable: DurableSide,
        dispatch: Callable[[Seat, float], None],
    ) -> None:
        self._streams = streams
        self._seats = seats
        self._durable = durable
        self._dispatch = dispatch

    def fetch(self, seat: Seat) -> None:
        """With the lock held: have what a group wants brought; it is dealt when it is here."""
        if seat.fetching:
            return
        seat.fetching = True
        line = seat.group.shelf.line
        parts = [
            part for first, stop in seat.group.shelf.wanted for part in line.split(first, stop)
        ]
        job = partial(self._fetch, seat, parts[:FETCH_PARTS_MAX])
        self._durable.replay.submit(("group", id(seat)), job)

    def _fetch(self, seat: Seat, parts: Sequence[Part]) -> None:
        """On the replay's thread."""
        frames: list[tuple[int, int, bytes]] = []
        gone: list[tuple[int, int, str]] = []
        try:
            left = FETCH_BYTES_MAX
            for epoch in sorted({part.epoch for part in parts}):
                some = [part for part in parts if part.epoch == epoch]
                ranges = [(part.first, part.stop) for part in some]
                offset = some[0].offset
                found, lost = self._durable.replay.frames(
                    seat.outlet.disk, epoch, ranges, left, FETCH_FRAMES_MAX - len(frames)
                )
                for data in found:
                    frame = _checked(data, epoch)
                    if frame is None:  # the log's checksum says it is whole: one of ours, or a lie
                        raise LogError(seat.outlet.disk.path, "a frame of it makes no sense")
                    frames.append((frame.first + offset, frame.stop + offset, data))
                    left -= len(data)
                for reason, pieces in lost.items():
                    gone += [(first + offset, stop + offset, reason) for first, stop in pieces]
                if left <= 0 or len(frames) >= FETCH_FRAMES_MAX:
                    break
        finally:
            with self._streams.changed:
                seat.fetching = False
                seat.group.shelf.put(frames, gone)
                there = self._streams.fanout is not None and seat in self._seats
                if there and frames + gone:
                    self._streams.counters["group_fetched_frames"] += len(frames)
                    self._dispatch(seat, _platform.monotonic())

    def find_places(
        self,
        who: int,
        group: str,
        starts: Sequence[Start],
        done: Callable[[dict[str, Line]], None],
        put_off: Callable[[str], bool] = lambda problem: True,
    ) -> None:
        """Have looked up in the logs where a group starts, and go on with that.

        What cannot be read now is tried again, for as long as `put_off` returns True.
        """
        job = partial(self._find_places, starts, done)
        self._durable.look_up((who, group), f"group {group}", job, put_off)

    def _find_places(
        self, starts: Sequence[Start], done: Callable[[dict[str, Line]], None]
    ) -> None:
        lines = {}
        for start in starts:
            outlet = self._streams.outlets[start.stream]
            assert outlet.log is not None
            chapters, seq = self._durable.replay.chapters(outlet.log.folder, start, outlet.epoch)
            past = [Past(c.epoch, c.start, c.stop) for c in chapters if c.start < c.stop]
            origin = outlet.sender.origin if seq is None else seq
            line = Line(outlet.epoch, outlet.sender.origin, past)
            if not past:
                line.start = origin
            lines[start.stream] = line
        with self._streams.changed:
            done(lines)


def _checked(data: bytes, epoch: int) -> Frame | None:
    try:
        frame = Frame(data)
    except ProtocolError:
        return None
    return frame if frame.epoch == epoch else None
