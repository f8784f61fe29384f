"""Where the source gets events: what a place with logs must be able to do, and the place on disk.

Belongs here: `EventSource`, and `LogSource` for a `data_dir` that this machine sees.  Does not
belong here: which ranges are wanted (`positions`), and what becomes of the frames (`columns`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from meshmsg import ConfigError, LogError, Loss
from meshmsg.recovery.log import seek as log_places
from meshmsg.recovery.log.folder import LogFolder, find_logs
from meshmsg.recovery.log.format import SegmentName
from meshmsg.recovery.log.journal import Journal
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.stream.receiver import Run
from meshmsg.spark_sink.errors import ShortRead
from meshmsg.spark_sink.source.positions import Epoch, Range, StreamState, Survey


class EventSource(Protocol):
    """A place that has streams.  One object is used by one thread."""

    def survey(self) -> Survey:
        """What there is now.  What cannot be looked at is a problem in it, not an exception."""

    def place_at(self, stream: str, time_ns: int) -> tuple[int, int] | None:
        """Epoch and number of the first event that is as late; `None` if none is."""

    def codec_of(self, stream: str) -> str:
        """The name of the codec of a stream of which something was read."""

    def read(self, wanted: Range) -> Iterator[Run | Loss]:
        """Every event of the range once, in order, or a `Loss`; raises `ShortRead`, `LogError`.

        What lies before the epoch's beginning is passed over.
        """

    def away(self) -> dict[str, float]:
        """What of it cannot be reached now and may be again, and for how many seconds."""

    def close(self) -> None:
        """Let go of files and sockets."""


class LogSource:
    """Logs in a folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._folders: dict[str, LogFolder] = {}
        self._names: dict[str, tuple[str, str]] = {}  # stream and codec by folder
        self._ends: dict[tuple[str, SegmentName], int] = {}

    def check(self) -> None:
        """Raises `ConfigError` if there is no such folder."""
        if not os.path.isdir(self.path):
            problem = (
                f"there is no folder {self.path!r} here: name a peer's data_dir (or the folder of "
                f"one stream in it) that the driver and every executor see"
            )
            raise ConfigError("option path", problem)

    def survey(self) -> Survey:
        """See `EventSource`."""
        found = Survey()
        if not os.path.isdir(self.path):
            found.problems[self.path] = "the folder is not there"
            return found
        try:
            folders = find_logs(self.path)
        except OSError as error:
            found.problems[self.path] = str(error)
            return found
        chosen: dict[str, LogFolder] = {}
        for folder in sorted(folders, key=lambda folder: folder.path):
            try:
                state = self._look(folder)
            except OSError as error:  # a LogError is one
                found.problems[folder.path] = str(error)
                continue
            named = folder.path == LogFolder.of(self.path, state.stream).path
            other = folder
            if state.stream not in chosen or named:
                other = chosen.get(state.stream, folder)
                chosen[state.stream] = folder
                found.streams[state.stream] = state
            if other is not chosen[state.stream]:
                problem = f"it has a log of {state.stream}, as {chosen[state.stream].path} has"
                found.problems[other.path] = f"{problem}: it is not read. Name the folder to read"
        self._folders |= chosen
        return found

    def _look(self, folder: LogFolder) -> StreamState:
        with LogReader(folder) as reader:
            epochs = []
            last = reader.journal.epochs[-1].epoch if reader.journal.epochs else 0
            kept = {known.epoch: known.first for known in reader.journal.kept()}
            for known in reader.journal.epochs:
                own = [name for name in reader.segments if name.epoch == known.epoch]
                stop, ended = known.stop, True
                if own:
                    ended = known.epoch != last
                    stop = self._stop_of(folder, own[-1], reader.journal, ended)
                if stop is not None:
                    first = min(kept.get(known.epoch, stop), stop)
                    epochs.append(Epoch(known.epoch, known.first, first, stop, ended))
            return StreamState(reader.stream, epochs, reader.codec)

    def _stop_of(self, folder: LogFolder, name: SegmentName, journal: Journal, over: bool) -> int:
        """Where an epoch ends; of one that is over, it is looked for only once."""
        key = (folder.path, name)
        stop = self._ends.get(key) if over else None
        if stop is None:
            stop = log_places.stop_of(folder, name, journal)
            if over:
                self._ends[key] = stop
        return stop

    def _folder(self, stream: str) -> LogFolder:
        folder = self._folders.get(stream)
        if folder is None:
            direct = LogFolder.of(self.path, stream)
            if direct.segments():
                folder = direct
            else:
                self.survey()
                folder = self._folders.get(stream)
        if folder is None:
            raise LogError(self.path, f"there is no log of stream {stream!r} in this folder")
        self._folders[stream] = folder
        return folder

    def place_at(self, stream: str, time_ns: int) -> tuple[int, int] | None:
        """See `EventSource`."""
        with LogReader(self._folder(stream)) as reader:
            folder, segments, journal = reader.folder, reader.segments, reader.journal
            return log_places.at_time(folder, segments, journal, time_ns)

    def codec_of(self, stream: str) -> str:
        """See `EventSource`."""
        about = self._folder(stream).about()
        return "msgpack" if about is None else about.codec

    def read(self, wanted: Range) -> Iterator[Run | Loss]:
        """See `EventSource`."""
        stream, epoch, at, stop = wanted
        with LogReader(self._folder(stream)) as reader:
            known = reader.journal.find(epoch)
            if known is not None and not at:
                at = min(known.first, stop)
            reader.seek(epoch, at)
            for item in reader.runs():
                if item.epoch != epoch if isinstance(item, Loss) else item.frame.epoch != epoch:
                    break
                piece, at = clip(item, stop)
                if piece is not None:
                    yield piece
                if at >= stop:
                    return
            if at >= stop:
                return
            reader.refresh()
            known = reader.journal.find(epoch)
            later = [e for e in reader.journal.epochs if e.epoch > epoch]
            if known is not None and (later or known.stop is not None):
                # The epoch is over and ended before that: a crash of the machine took its end.
                yield Loss(stream, epoch, at, stop, "gone")
                return
            raise ShortRead(self.path, stream, epoch, at, stop)

    def away(self) -> dict[str, float]:
        """See `EventSource`.  A folder has nobody beside it who could have the same."""
        return {}

    def close(self) -> None:
        """See `EventSource`."""


def clip(item: Run | Loss, stop: int) -> tuple[Run | Loss | None, int]:
    """The part of an item before `stop`, and where the next begins."""
    if isinstance(item, Loss):
        if item.first >= stop:
            return None, stop
        last = min(item.stop, stop)
        return Loss(item.stream, item.epoch, item.first, last, item.reason), last
    frame, lo, hi = item
    hi = min(hi, stop - frame.first)
    return (Run(frame, lo, hi) if hi > lo else None), frame.first + hi
