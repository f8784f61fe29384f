"""Events of a shelf's frames as parcels for members: whole frames, or parts of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from meshmsg._wire.frame import Frame
from meshmsg._wire.subframe import WHOLE_SHARE, Work, cut, parts_of
from meshmsg.recovery.groups.numbering import Shelf

FRAMES_CACHED = 16


class Parcels:
    """Packs events; frames that were read are kept for a while."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._frames: OrderedDict[int, Frame] = OrderedDict()

    def frame(self, seq: int) -> tuple[int, Frame] | None:
        """Where the frame that has an event begins, and that; `None` if it is not at hand."""
        for first, _, data in self._shelf.held(seq, seq + 1):
            return first, self.parsed(first, data)
        return None

    def parsed(self, first: int, data: bytes) -> Frame:
        """The frame that begins there, read."""
        frame = self._frames.get(first)
        if frame is None or frame.data is not data:  # what was read later may have more events
            frame = self._frames[first] = Frame(data)
            if len(self._frames) > FRAMES_CACHED:
                self._frames.popitem(last=False)
        return frame

    def in_a_row(self, start: int, end: int, data: bytes, first: int, stop: int) -> Work:
        """Events `first` to `stop` of the frame with events `start` to `end`, attempt 1."""
        if stop - first >= (end - start) * WHOLE_SHARE:
            return Work(data, first - start, stop - start, None, 1)
        part = cut(self.parsed(start, data), first - start, stop - start)
        return Work(part, 0, stop - first, None, 1)

    def chosen(self, seqs: list[int], again: Mapping[int, int]) -> Iterable[Work]:
        """Any rising events that are there, with the attempts in `again`, others with 1."""
        at = 0
        while at < len(seqs):
            found = self.frame(seqs[at])
            assert found is not None, "it was there when it was assigned"
            base, frame = found
            to = at
            while to < len(seqs) and seqs[to] < base + frame.count:
                to += 1
            yield from _of_frame(frame, base, seqs[at:to], again)
            at = to


def _of_frame(frame: Frame, base: int, seqs: list[int], again: Mapping[int, int]) -> Iterable[Work]:
    if len(seqs) >= frame.count * WHOLE_SHARE:
        yield _work(frame.data, base, seqs, again)
        return
    for lo, hi in parts_of(seqs):
        some = seqs[lo:hi]
        data = cut(frame, some[0] - base, some[-1] + 1 - base, [seq - base for seq in some])
        yield _work(data, some[0], some, again)


def _work(data: bytes, base: int, seqs: list[int], again: Mapping[int, int]) -> Work:
    places = [seq - base for seq in seqs]
    lo, hi = places[0], places[-1] + 1
    chosen = None if hi - lo == len(places) else places
    attempts = [again.get(seq, 1) for seq in seqs]
    if attempts.count(attempts[0]) == len(attempts):
        return Work(data, lo, hi, chosen, attempts[0])
    return Work(data, lo, hi, chosen, 0, attempts)
