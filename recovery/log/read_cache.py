"""What of a log was read last, kept for those who read the same: ten consumers cost one read.

Consumers that were away come back together and read one behind the other.  A window is a reader
with the pieces that it read last; whoever wants something of these gets it from there, and whoever
comes to the end of them reads on for all.  Bounded, and let go of when nobody has asked for a
while: files that retention removes take their space until they are closed.
"""

from __future__ import annotations

from bisect import bisect_right

from meshmsg._model.event import Loss
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import Entry, LogReader

WINDOWS_MAX = 16
#: What one keeps, and all of them together; twice that before it is thrown away.
WINDOW_BYTES = 8 * 1024 * 1024
WINDOWS_BYTES = 32 * 1024 * 1024
#: To read on over so many events costs less than another reader.
SKIP_EVENTS = 4096
#: What no one has asked of for this long is closed.
IDLE_S = 1.0


class _Window:
    """A reader of one epoch, and what it read last, without a gap."""

    def __init__(self, reader: LogReader, epoch: int, at: int, now: float) -> None:
        self.reader = reader
        self.epoch = epoch
        self.first = self.stop = at  #: what it has
        self.used_at = now
        self._items: list[Entry | Loss] = []
        self._stops: list[int] = []
        self._bytes = 0
        self._index = 0
        reader.seek(epoch, at)

    def seek(self, at: int, room: int) -> bool:
        """Stand before an event, reading on to it if it is not far; whether it does."""
        if at > self.stop + SKIP_EVENTS:
            return False
        self._index = len(self._items)
        while self.stop < at and (item := self.step(room, at)[0]) is not None:
            if item.epoch != self.epoch:
                break
        self._index = bisect_right(self._stops, at)
        return self.stop >= at

    def step(self, room: int, stop: int) -> tuple[Entry | Loss | None, bool]:
        """The next piece, and whether it was there already; keeps about `room` bytes."""
        if self._index < len(self._items):
            self._index += 1
            return self._items[self._index - 1], True
        item = self.reader.step(stop)
        if item is None or item.epoch != self.epoch:
            return item, False
        self._items.append(item)
        self._stops.append(item.stop)
        self._index += 1
        self.stop = item.stop
        self._bytes += _size(item)
        if self._bytes > 2 * room and len(self._items) > 1:
            self._trim(room)
        return item, False

    def _trim(self, room: int) -> None:
        gone = 0
        while self._bytes > room and gone < len(self._items) - 1:
            self._bytes -= _size(self._items[gone])
            gone += 1
        self.first = self._stops[gone - 1]
        del self._items[:gone], self._stops[:gone]
        self._index -= gone


def _stop(window: _Window) -> int:
    return window.stop


def _size(item: Entry | Loss) -> int:
    return 100 if isinstance(item, Loss) else len(item.data)


class LogWindows:
    """Reads logs at several places at once; for one thread.  Takes the place of a `LogReader`."""

    def __init__(self) -> None:
        self.shared = 0  #: pieces that were there already
        self._windows: list[tuple[str, _Window]] = []
        self._folder: LogFolder | None = None
        self._now = 0.0
        self._current: _Window | None = None
        self._at = 0

    def choose(self, folder: LogFolder, *, now: float) -> LogWindows:
        """The log that is meant from now on."""
        self._folder, self._now = folder, now
        return self

    def seek(self, epoch: int, seq: int) -> None:
        """Stand before this event; raises `LogError` if there is no log."""
        assert self._folder is not None
        path = self._folder.path
        near = [
            window
            for name, window in self._windows
            if name == path and window.epoch == epoch and window.first <= seq
        ]
        found = max(near, key=_stop, default=None)
        if found is None or not found.seek(seq, self._room):
            found = self._new(self._folder, epoch, seq)
        found.used_at = self._now
        self._current, self._at = found, seq

    def _new(self, folder: LogFolder, epoch: int, seq: int) -> _Window:
        reader = LogReader(folder)
        reader.open()
        if len(self._windows) >= WINDOWS_MAX:
            self._drop(min(range(len(self._windows)), key=lambda i: self._windows[i][1].used_at))
        window = _Window(reader, epoch, seq, self._now)
        self._windows.append((folder.path, window))
        return window

    def step(self, stop: int) -> Entry | Loss | None:
        """The next frame or loss; `None` if there is nothing more yet.  See `LogReader.step`."""
        assert self._current is not None
        item, shared = self._current.step(self._room, stop)
        self.shared += shared
        if item is None:
            return None
        first, self._at = max(self._at, item.first), item.stop
        if item.epoch == self._current.epoch and first != item.first:
            if isinstance(item, Loss):
                return Loss(item.stream, item.epoch, first, item.stop, item.reason)
            return item._replace(first=first)
        return item

    @property
    def _room(self) -> int:
        return min(WINDOW_BYTES, WINDOWS_BYTES // max(1, len(self._windows)))

    def __bool__(self) -> bool:
        return bool(self._windows)

    def rest(self, *, now: float) -> None:
        """Let go of what nobody has asked of for a while."""
        for index in reversed(range(len(self._windows))):
            if now - self._windows[index][1].used_at >= IDLE_S:
                self._drop(index)

    def close(self) -> None:
        """Let go of all."""
        while self._windows:
            self._drop(0)

    def _drop(self, index: int) -> None:
        _, window = self._windows.pop(index)
        window.reader.close()
        if window is self._current:
            self._current = None
