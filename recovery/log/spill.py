"""What a slow consumer has yet to take and memory has no room for: on disk, until it is taken.

The `spill` policy's second place.  Frames come in the order of the stream, when they fall out of
the retransmit buffer while somebody still wants them; a consumer that is in time costs nothing.  It
is a log that is never synced, since nobody reads it after a crash: the next start removes it.  It
is made with the first frame, and its files go as soon as all of their events were taken.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from itertools import pairwise
from typing import Any

from meshmsg._model.errors import LogError
from meshmsg.recovery.log import journal as log_epochs
from meshmsg.recovery.log.active_segment import FRESH
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.files import File, Files, Held, RealFiles
from meshmsg.recovery.log.folder import ABOUT_FILE, LOCK_FILE, LogFolder
from meshmsg.recovery.log.format import parse_name, record_size
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.ranges import RangeSet

SEGMENT_BYTES_MIN = 1024 * 1024
SEGMENT_BYTES_MAX = 16 * 1024 * 1024
#: A spill of this many bytes is kept in this many files: what was taken goes file by file.
SEGMENTS = 16
_SMALL_FILES = (LOCK_FILE, ABOUT_FILE, *log_epochs.FILES)


class _UnsyncedFile:
    """A file that nobody needs after a crash."""

    def __init__(self, file: File) -> None:
        self.write_at = file.write_at
        self.read_at = file.read_at
        self.allocate = file.allocate
        self.map = file.map
        self.truncate = file.truncate
        self.size = file.size
        self.close = file.close

    def sync(self) -> None:
        """Nothing: see `UnsyncedFiles`."""


class UnsyncedFiles(RealFiles):
    """Files that are written and never synced."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `Files`."""
        return _UnsyncedFile(super().open(path, write=write, create=create))

    def sync_folder(self, folder: str) -> None:
        """Nothing."""


class SpillLog:
    """The frames of a stream that are on disk only; all calls come under the publisher's lock."""

    def __init__(
        self,
        folder: str,
        stream: str,
        epoch: int,
        bytes_max: int,
        *,
        mesh: str = "default",
        codec: str = "msgpack",
        files: Files | None = None,
    ) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0  #: on disk now
        self.stored = RangeSet()  #: events that are there and that somebody wants
        self.spilled_events = 0  #: ever
        self.spilled_bytes = 0
        self.problem: LogError | None = None  #: why the last frame could not be written
        self.counters: Counter[str] = Counter()
        self._path = folder
        self._stream = stream
        self._mesh = mesh
        self._codec = codec
        self._epoch = epoch
        self._files = UnsyncedFiles() if files is None else files
        self._writer: LogWriter | None = None
        self._segments: list[int] = []  # bytes of each file, the last is written to

    @property
    def folder(self) -> LogFolder:
        """Where it is read."""
        return LogFolder.of(self._path, self._stream, files=self._files)

    def is_full(self) -> bool:
        """Whether publishing has to wait: the bound is reached, or the disk takes no more."""
        return self.bytes > self.bytes_max or self.problem is not None

    def take(self, first: int, stop: int, frame: bytes) -> bool:
        """Write a frame; `False` if the disk does not take it, and the frame has to stay."""
        try:
            if self._writer is None:
                self._writer = self._open(first)
            rolled = self._writer.counters["segments"]
            self._writer.write(frame, first, stop)
        except LogError as error:
            self.problem = error
            self.counters["spill_failures"] += 1
            return False
        self.problem = None
        if not self._segments or self._writer.counters["segments"] > rolled:
            self._segments.append(0)
        size = record_size(len(frame))
        self._segments[-1] += size
        self.bytes += size
        self.stored.add(first, stop)
        self.spilled_events += stop - first
        self.spilled_bytes += size
        return True

    def _open(self, first: int) -> LogWriter:
        segment_bytes = min(SEGMENT_BYTES_MAX, max(SEGMENT_BYTES_MIN, self.bytes_max // SEGMENTS))
        writer = LogWriter(
            self._path,
            self._stream,
            mesh=self._mesh,
            codec=self._codec,
            settings=LogSettings(
                fsync="never", segment_bytes=segment_bytes, allocate_bytes=0, tail_bytes=0
            ),
            files=self._files,
            background=False,
        )
        writer.open()
        try:
            writer.follow(self._epoch, first)  # as given: others know the events by this epoch
        except LogError:
            with contextlib.suppress(LogError):
                writer.close()
            raise
        return writer

    def release(self, floor: int | None) -> None:
        """Events before `floor` were taken by all who want them (`None`: all events)."""
        stored = self.stored
        if not stored:
            return
        if floor is None:
            floor = stored.bounds[1]
        stored.discard_before(floor)
        self.problem = None if not stored else self.problem
        if len(self._segments) > 1:
            self._remove(floor)
        if not stored:
            self.bytes = 0  # the last file is not counted while nobody wants anything of it
            self._segments[:-1] = []
            self._segments[-1] = 0

    def _remove(self, floor: int) -> None:
        """Remove the files that hold nothing else than events before `floor`."""
        folder = self.folder
        names = folder.segments()
        for name, following in pairwise(names):
            if following.first > floor or len(self._segments) < 2:
                return
            with contextlib.suppress(OSError):  # counted as gone: the next start removes it
                self._files.remove(f"{folder.path}/{name.file}")
                self._files.remove(f"{folder.path}/{name.index_file}")
            self.bytes -= self._segments.pop(0)

    def stats(self) -> dict[str, Any]:
        """Figures, for people."""
        return {
            "path": self.folder.path,
            "events": self.stored.count,
            "bytes": self.bytes,
            "bytes_max": self.bytes_max,
            "spilled_events": self.spilled_events,
            "spilled_bytes": self.spilled_bytes,
            "spill_failures": self.counters["spill_failures"],
            "problem": None if self.problem is None else str(self.problem),
        }

    def close(self) -> None:
        """Let go of the files and remove them."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        with contextlib.suppress(LogError):
            writer.close()
        remove_spill(self.folder)


def remove_spill(folder: LogFolder) -> bool:
    """Remove what a process left behind; `False` if one that runs has it, or it cannot be."""
    files, path = folder.files, folder.path
    if LOCK_FILE not in files.names(path):
        return False
    try:
        held = files.lock(f"{path}/{LOCK_FILE}")
    except (Held, OSError):
        return False
    try:
        for name in filter(is_spill_file, files.names(path)):
            files.remove(f"{path}/{name}")
    except OSError:
        return False
    finally:
        held.close()
    return True


def is_spill_file(name: str) -> bool:
    """Return True for the name of a file that a spill makes."""
    name = name.removesuffix(FRESH)
    return name in _SMALL_FILES or parse_name(name.replace(".idx", ".seg")) is not None
