"""The log of one stream that is not ours: the same frames, numbers and epochs, and what is missing.

Belongs here: what is written for a delivery, and what the folder says of the stream beside the log.
Does not belong here: where deliveries come from (`recorder`), who reads the log
(`recorder_service`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from meshmsg._model.errors import LogError
from meshmsg._model.event import Loss, Position
from meshmsg._wire.control import StreamInfo
from meshmsg._wire.subframe import cut
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.cursors import Cursor
from meshmsg.recovery.log.files import Files, read_small, replace_small
from meshmsg.recovery.log.folder import (
    UNKNOWN,
    VERSION,
    LogFolder,
    decode_checked,
    encode_checked,
)
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.receiver import Delivery

log = logging.getLogger("meshmsg.peer")

RECORDED_FILE = "recorded.json"
RECORDED_BYTES_MAX = 64 * 1024
#: Readers report what they have taken, and nobody waits for it.
NO_WINDOW = 1 << 62


class RecordedLog:
    """A log that follows another peer's stream."""

    def __init__(
        self,
        data_dir: str,
        stream: str,
        *,
        topics: str,
        codec: str,
        mesh: str,
        settings: LogSettings,
    ) -> None:
        self.stream = stream
        self.topics = topics
        self.codec = codec
        self.writer = LogWriter(data_dir, stream, mesh=mesh, codec=codec, settings=settings)
        self.events = self.bytes = self.frames = self.lost = 0  #: since this start
        self.refused_epoch = 0  #: one that lies before what is kept already
        self._last = (0, 0)

    @property
    def folder(self) -> LogFolder:
        """Where it is."""
        return self.writer.folder

    def hold(self, names: Iterable[str]) -> None:
        """See that these cursors are there before retention can look for them; `LogError`."""
        cursors = self.writer.cursors()
        for name in names:
            if cursors.get(name, self.stream) is None:
                cursors.set(Cursor(name, self.stream, 0, 0, hold=True))

    def open(self) -> None:
        """Lock and recover it; raises `LogError`."""
        recovery = self.writer.open()
        try:
            for known in recovery.journal.epochs[-1:]:
                self._last = (known.epoch, known.stop or known.first)
            self.writer.settle()
            fields = {"version": VERSION, "stream": self.stream, "topics": self.topics}
            replace_small(
                self.folder.files, self.folder.path, RECORDED_FILE, encode_checked(fields)
            )
        except OSError as error:
            self.writer.close()
            if isinstance(error, LogError):
                raise
            raise LogError(self.folder.path, f"cannot be used: {error.strerror}") from error

    @property
    def place(self) -> tuple[int, int]:
        """The newest epoch, and one past the last event of it; zeros in an empty log."""
        return self._last  # as one: other threads look at it

    @property
    def position(self) -> Position | None:
        """Where to go on after `open`: behind what the files have; `None` if they have nothing.

        What else the journal knows of is asked for once more: somebody may have it.
        """
        recovery = self.writer.recovery
        if recovery.last is None:
            return None
        return Position(self.stream, recovery.last.epoch, recovery.next)

    def info(self) -> StreamInfo:
        """How it is announced."""
        return StreamInfo(
            self.stream, self.topics, self.place[0], "recorded", self.codec, NO_WINDOW, durable=True
        )

    def put(self, epoch: int, start: int, delivery: Delivery) -> bool:
        """Write a run or a loss of an epoch that we receive from `start` on; raises `LogError`.

        `False` if the epoch lies before what is kept: the publisher's clock was set back.
        """
        if isinstance(delivery, Loss):
            first, stop = delivery.first, delivery.stop
        else:
            first, stop = delivery.frame.first + delivery.lo, delivery.frame.first + delivery.hi
        writer = self.writer
        if writer.epoch != epoch:
            if epoch < self.place[0]:
                return False
            writer.follow(epoch, min(start, first))
        if stop <= writer.next:
            self._last = (epoch, writer.next)
            return True  # we have it: the log went further than we knew when we asked
        if first > writer.next:  # should not be; but then it must be seen
            self.lost += first - writer.next
            writer.append_loss(writer.next, first, "gone")
        first = max(first, writer.next)
        if isinstance(delivery, Loss):
            writer.append_loss(first, stop, delivery.reason)
            self._last = (epoch, stop)
            self.lost += stop - first
            return True
        frame = delivery.frame
        data = frame.data
        if (first, stop) != (frame.first, frame.stop):
            data = cut(frame, first - frame.first, stop - frame.first)
        writer.write(data, first, stop)
        self._last = (epoch, stop)
        self.events += stop - first
        self.frames += 1
        self.bytes += len(data)
        return True


def unfit(folder: LogFolder, mesh: str) -> str:
    """Why a folder cannot take another peer's stream; empty if it can.  Raises `LogError`."""
    about = folder.about()
    if about is not None and about.wire_id != UNKNOWN and about.mesh != mesh:
        return f"has the stream of mesh {about.mesh!r}: give each mesh's recorder its own data_dir"
    if folder.segments() and recorded_topics(folder) is None:
        return "is the log of the publisher itself: give the recorder a data_dir of its own"
    return ""


def adopt(folder: LogFolder) -> None:
    """The publisher of a stream goes on with what a recorder kept of it; raises `LogError`."""
    path = f"{folder.path}/{RECORDED_FILE}"
    try:
        if RECORDED_FILE in folder.files.names(folder.path):
            log.info("%s was kept by a recorder, and is its publisher's from now on", folder.path)
            folder.files.remove(path)
            folder.files.sync_folder(folder.path)
    except OSError as error:
        raise LogError(path, f"could not be removed: {error.strerror or error}") from error


def recorded_topics(folder: LogFolder) -> str | None:
    """The topics of a log that a recorder keeps; `None` if it is another log, or damaged."""
    files: Files = folder.files
    try:
        data = read_small(files, f"{folder.path}/{RECORDED_FILE}", RECORDED_BYTES_MAX)
    except OSError:
        return None
    if data is None:
        return None
    fields = decode_checked(data) or {}
    topics = fields.get("topics")
    # Damaged: what it carries is not known, so it may be anything.
    return topics if isinstance(topics, str) else "**"
