"""Dead letters go back to their group: under their old positions, and to no other group.

A letter says which event it was.  That event becomes one again that is not settled, with all its
attempts before it.  How far the stream of dead letters was gone through stands in the group's own
file, which is written before any of them is dealt out: so each letter is sent again once, however
often somebody asks and whenever the publisher is killed.

An event that neither memory nor the log has any more is put together from its letter.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from meshmsg import _platform
from meshmsg._groups.progress_store import GroupKeeper
from meshmsg._groups.seat import Seat, Seats
from meshmsg._model.errors import ProtocolError
from meshmsg._wire.control import Operate
from meshmsg._wire.frame import Frame, encode_frame, encode_headers
from meshmsg.recovery.groups.attempts import Revival
from meshmsg.recovery.groups.numbering import Line
from meshmsg.recovery.groups.resume import line_of
from meshmsg.recovery.groups.store import GroupRecord
from meshmsg.recovery.log.format import NUMBER_MAX
from meshmsg.recovery.log.reader import LogReader

log = logging.getLogger("meshmsg.peer")

#: Sent again at one time; whoever wants more asks again.
LETTERS_MAX = 1000
LETTERS_BYTES_MAX = 4 * 1024 * 1024
PREFIX = "dead."


class Letter(NamedTuple):
    """A dead letter, and the event that it was."""

    place: tuple[int, int]  #: its own
    epoch: int
    seq: int
    attempts: int
    frame: Frame
    at: int  #: its place there

    @property
    def key(self) -> str | None:
        """The event's key."""
        return self.frame.key_at(self.at)

    def event(self, wire_id: int) -> bytes:
        """The event in a frame of its own."""
        frame, index = self.frame, self.at
        headers = dict(frame.headers_at(index))
        topic = str(headers[f"{PREFIX}topic"])
        own = {name: value for name, value in headers.items() if not name.startswith(PREFIX)}
        key = self.key
        return encode_frame(
            wire_id,
            self.epoch,
            self.seq,
            topic,
            [frame.payload_at(index)],
            frame.time_at(index),
            raw=frame.is_raw(index),
            keys={} if key is None else {0: key},
            headers={0: encode_headers(own)} if own else {},
        )


class Redriver:
    """Sends the dead letters of a peer's groups again."""

    def __init__(
        self,
        changed: threading.Condition,
        counters: Counter[str],
        seats: Seats,
        submit: Callable[[object, Callable[[], None]], None],
        is_open: Callable[[], bool],
        keeper: GroupKeeper,
        dispatch: Callable[[Seat, float], None],
    ) -> None:
        self._changed = changed  # of the publishing side, with its lock
        self._counters = counters
        self._seats = seats
        self._submit = submit  # to the replay's thread
        self._is_open = is_open
        self._keeper = keeper
        self._dispatch = dispatch

    def redrive(
        self,
        order: Operate,
        seats: Sequence[Seat],
        answer: Callable[[list[dict[str, Any]], str], None],
    ) -> None:
        """Have it done on the replay's thread, which may read the disk; answered when it is."""
        job = partial(self._redrive_all, order, list(seats), answer)
        self._submit(("redrive", order.number, order.name, id(answer)), job)

    def _redrive_all(
        self,
        order: Operate,
        seats: list[Seat],
        answer: Callable[[list[dict[str, Any]], str], None],
    ) -> None:
        rows, problem = [], ""
        try:
            rows = [self._redrive(seat, order) for seat in seats]
        except Exception as error:  # who asks is told, before the thread notes it
            problem = f"{type(error).__name__}: {error}"
            raise
        finally:
            answer(rows, problem)

    def _redrive(self, seat: Seat, order: Operate) -> dict[str, Any]:
        most = min(order.most or LETTERS_MAX, LETTERS_MAX)
        with self._changed:
            since = seat.group.redriven
        found = list(self._letters(seat, since))
        letters = _some(found, most)
        line = self._line(seat, letters)
        again = 0
        with self._changed:
            group = seat.group
            there = self._is_open() and seat in self._seats
            if there and group.redriven == since and letters:
                again = self._revive(seat, letters, line, dry_run=order.dry_run)
        return {
            "group": seat.group.name,
            "stream": seat.outlet.stream,
            "letters": len(letters),
            "redriven": again,
            "left": len(found) - len(letters),
        }

    def _revive(self, seat: Seat, letters: list[Letter], line: Line, *, dry_run: bool) -> int:
        group, now = seat.group, _platform.monotonic()
        known = [(letter, line.number(letter.epoch, letter.seq)) for letter in letters]
        dead = [(one, n) for one, n in known if n is not None and group.is_settled(n)]
        if dry_run:
            return len(dead)
        group.shelf.line = line
        group.redriven = letters[-1].place[0], letters[-1].place[1] + 1
        group.changes += 1
        frames = [(n, n + 1, one.event(seat.outlet.sender.wire_id)) for one, n in dead]
        here = [frame for frame in frames if not any(group.shelf.held(frame[0], frame[1]))]
        group.shelf.put(here, ())
        again = group.revive(Revival(n, one.attempts, one.key) for one, n in dead)
        seat.claim.start = min(seat.claim.start, group.floor)
        self._keeper.save_now(seat)
        text = "group %s of %s gets %d dead letters again"
        log.warning(text, group.name, seat.outlet.stream, again)
        self._dispatch(seat, now)
        return again

    # --- reading ---

    def _letters(self, seat: Seat, since: tuple[int, int]) -> Iterator[Letter]:
        """The dead letters of a group on a stream, from a place on."""
        for frame in self._frames(seat, since):
            for index in range(frame.count):
                place = frame.epoch, frame.first + index
                if place >= since:
                    letter = _letter(frame, index, place, seat.outlet.stream)
                    if letter is not None:
                        yield letter

    def _frames(self, seat: Seat, since: tuple[int, int]) -> Iterator[Frame]:
        dead = seat.dead
        if dead is None:
            return
        if dead.log is None:
            with self._changed:
                held = [data for _, _, data in dead.sender.buffer.held(0, dead.sender.sealed)]
            yield from map(Frame, held)
            return
        with LogReader(dead.log.folder) as reader:
            if since > (0, 0):
                reader.seek(*since)
            else:
                reader.seek_earliest()
            for entry in reader.entries():
                if isinstance(data := getattr(entry, "data", None), bytes):
                    try:
                        yield Frame(data)
                    except ProtocolError:  # the log names what is damaged; the others go on
                        self._counters["spoiled_frames"] += 1

    def _line(self, seat: Seat, letters: list[Letter]) -> Line:
        """The group's line, as far back as the oldest of these events."""
        line, outlet = seat.group.shelf.line, seat.outlet
        if outlet.log is None or not letters:
            return line
        first = min((letter.epoch, letter.seq) for letter in letters)
        if first[0] == outlet.epoch or first >= line.place(line.start):
            return line
        with LogReader(outlet.log.folder) as reader:
            epochs = reader.journal.epochs
        return line_of(GroupRecord("", first), epochs, outlet.epoch, outlet.sender.origin)


def _some(letters: list[Letter], most: int) -> list[Letter]:
    """The first of them that are taken at one time."""
    left = LETTERS_BYTES_MAX
    taken: list[Letter] = []
    for letter in letters[:most]:
        left -= len(letter.frame.payload_at(letter.at))
        if left < 0 and taken:
            break
        taken.append(letter)
    return taken


def _letter(frame: Frame, index: int, place: tuple[int, int], stream: str) -> Letter | None:
    """A letter, if it is one of this stream and says which event it was."""
    headers = frame.headers_at(index)
    if headers.get(f"{PREFIX}stream") != stream:
        return None
    numbers = [headers.get(f"{PREFIX}{name}") for name in ("epoch", "seq", "attempts")]
    if not all(isinstance(n, int) and 0 <= n <= NUMBER_MAX for n in numbers):
        return None
    epoch, seq, attempts = numbers
    return Letter(place, epoch, seq, attempts, frame, index)  # type: ignore[arg-type]
