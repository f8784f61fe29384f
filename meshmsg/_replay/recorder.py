"""The recorder: receives other peers' streams and keeps them, verbatim, in logs of this peer.

A subscription like any other, read by a thread of its own.  What it has received counts, also for
the publishers that wait for it, when it is in the log, with `fsync="always"` on the disk.  A disk
that is full stops the reading: then the streams' own overflow words say what happens.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from meshmsg import _platform
from meshmsg._model.config import PeerConfig, Record
from meshmsg._model.errors import LogError, LogLocked
from meshmsg._model.event import Loss, Position
from meshmsg._model.log_policy import Retention
from meshmsg._model.message_fields import STREAMS_MAX
from meshmsg._model.topics import TopicFilter
from meshmsg._receive.incoming_stream import Books, Source, StartAt
from meshmsg._receive.ready_queue import Item
from meshmsg._receive.subscription_io import Intake
from meshmsg._replay.recorded_log import RecordedLog, recorded_topics, unfit
from meshmsg._replay.recorder_service import Lender
from meshmsg._runtime.guard import Guard
from meshmsg._wire.control import Figures
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.files import files_here
from meshmsg.recovery.log.folder import LogFolder, find_logs
from meshmsg.recovery.stream.receiver import Delivery, StreamReceiver

log = logging.getLogger("meshmsg.peer")

WAIT_S = 0.5
#: After a failure it is tried again after this long.
RETRY_S = 0.2
#: Written before the books are brought up to date, and the disk waited for.
TURN_BYTES = 8 * 1024 * 1024
#: A stream that cannot be kept here is not waited for; it is tried again after this long.
REFUSED_S = 5.0


class RecorderIntake(Intake):
    """A subscription whose consumer is a log."""

    follows_recorders = False

    def _figures(self, books: Books, receiver: StreamReceiver | None) -> Figures:
        return super()._figures(books, None)  # received is what is in the log

    def peek(self) -> Item | None:
        """What comes next."""
        return self._ready[0] if self._ready else None

    def pop(self) -> None:
        """It has been written."""
        self._pop()

    def enter(self, item: Item) -> None:
        """It is safe: enter it in the books."""
        source, books, delivery = item
        size = 0
        with self._books_lock:
            if isinstance(delivery, Loss):
                books.lost[delivery.reason] += delivery.count
                books.consumed = delivery.stop
                self.counters["lost"] += delivery.count
                self.losses.append(delivery)
            else:
                size = len(delivery.frame.data)
                books.delivered += delivery.hi - delivery.lo
                books.consumed = delivery.frame.first + delivery.hi
        self._note_consumed(source, size)


class Recorder:
    """All that one peer records; of use to programs are `losses` and `lost`."""

    def __init__(
        self,
        peer: PeerConfig,
        config: Record,
        lender: Lender,
        counters: Counter[str],
        subscribe: Callable[[TopicFilter, StartAt], RecorderIntake],
        unsubscribe: Callable[[RecorderIntake], None],
    ) -> None:
        self._mesh = peer.mesh
        self._data_dir = peer.data_dir or ""
        self._config = config
        self._counters = counters
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._settings = LogSettings(
            fsync=config.fsync,
            segment_bytes=int(config.segment_bytes),
            retention=Retention.parse(config.retention),
        )
        self.logs = lender.logs
        self.problem: str | None = None  #: why nothing is written just now
        self.intake: RecorderIntake | None = None
        self.lender = lender
        self.refused: dict[str, str] = {}  #: streams that cannot be kept here, and why
        self._refused_at: dict[str, float] = {}
        self._unentered: list[Item] = []
        self._stopped = _platform.new_event()
        self.guard = Guard(f"the recorder of {peer.name}", counters, "record_failures")
        name = f"meshmsg-{peer.name} recorder"
        self._thread = _platform.new_thread(self._run, name)

    # --- life ---

    def open(self) -> None:
        """Open the logs that are there; raises `LogError`, `LogLocked`."""
        try:
            files_here().make_folder(self._data_dir)
        except OSError as error:
            raise LogError(self._data_dir, f"cannot be used: {error.strerror or error}") from error
        try:
            for folder in find_logs(self._data_dir):
                topics, about = recorded_topics(folder), folder.about()
                if topics is not None and about is not None and about.mesh == self._mesh:
                    self._open_log(about.stream, topics, about.codec)
        except BaseException:
            self._close_logs()
            raise

    def _open_log(self, stream: str, topics: str, codec: str) -> RecordedLog:
        recorded = RecordedLog(
            self._data_dir,
            stream,
            topics=topics,
            codec=codec,
            mesh=self._mesh,
            settings=self._settings,
        )
        recorded.hold(self._config.hold)
        recorded.open()
        self.logs[stream] = recorded
        return recorded

    def start(self) -> None:
        """Begin to receive."""
        places: list[Position] = [p for log in self.logs.values() if (p := log.position)]
        start = StartAt("earliest", committed={place.stream: place for place in places})
        self.intake = self._subscribe(TopicFilter(self._config.topics), start)
        self._thread.start()

    def stop(self) -> LogError | None:
        """Write what has come, and close the logs; returns what failed."""
        self._stopped.set()
        if self.intake is not None:
            self.intake.wake()
        if self._thread.is_alive():
            self._thread.join()
        self.lender.stop()
        return self._close_logs()

    def _close_logs(self) -> LogError | None:
        failed = None
        for recorded in self.logs.values():
            try:
                recorded.writer.close()
            except LogError as error:
                log.error("%s", error)
                failed = error
        return failed

    # --- the thread ---

    def _run(self) -> None:
        intake = self.intake
        assert intake is not None
        self.guard.drive(self._turn, self._stopped.wait)
        if self.guard.ended is not None:
            # Nobody reads any more: publishers must not wait for it.
            self._unsubscribe(intake)

    def _turn(self) -> bool:
        """Take in what has come, and write it; `False` when it is over."""
        intake = self.intake
        assert intake is not None
        with intake.lock:
            stopping = self._stopped.is_set()
            if intake.closed:
                return False
            now = _platform.monotonic()
            intake.pump(now, read_ahead=True)
            intake.driven_at = now
            written = self._try_to_write()
            if stopping and not (written and self.problem is None and intake.peek()):
                return False
            if not written:
                intake.wait(WAIT_S, now)
        if self.problem is not None:
            self._stopped.wait(RETRY_S)
        return True

    def _try_to_write(self) -> int:
        """Write what is ready; a log that cannot be written is told, and tried again for ever."""
        try:
            done = self._write_ready()
            self.problem = None
            return done
        except LogError as error:
            if str(error) != self.problem:
                log.error("recording waits: %s", error)
            self.problem = str(error)
            self._counters["record_failures"] += 1
            return 1

    def _write_ready(self) -> int:
        """Write what is ready, make it as safe as promised, enter it in the books."""
        intake = self.intake
        assert intake is not None
        size = 0
        while size < TURN_BYTES:
            item = intake.peek()
            if item is None:
                break
            item = self._write(item)
            intake.pop()
            size += _size(item[2])
            self._unentered.append(item)
        if self._settings.fsync == "always":
            for stream in {item[1].stream for item in self._unentered}:
                recorded = self.logs.get(stream)  # none of one that is refused
                if recorded is not None and recorded.writer.epoch:
                    recorded.writer.flush()
        done, self._unentered = self._unentered, []
        for item in done:
            intake.enter(item)
        if done:
            self.lender.on_written()
        return len(done)

    def _write(self, item: Item) -> Item:
        """Write one; returns it as it is entered in the books."""
        source, books, delivery = item
        recorded = self.logs.get(books.stream)
        if recorded is None:
            recorded = self._begin(source, books.stream)
            if recorded is None:
                return source, books, self._lose(books, delivery)
        if recorded.put(books.epoch, books.start, delivery):
            return item
        lost = self._refuse(recorded, books, delivery)
        return source, books, lost

    def _begin(self, source: Source, stream: str) -> RecordedLog | None:
        """The log of a new stream; `None` if it cannot be kept here, and others must not wait."""
        now = _platform.monotonic()
        if now - self._refused_at.get(stream, -REFUSED_S) < REFUSED_S:
            return None
        folder = LogFolder.of(self._data_dir, stream)
        full = len(self.logs) >= STREAMS_MAX
        problem = "" if not full else f"is one too many: {STREAMS_MAX:,} streams are recorded"
        problem = problem or unfit(folder, self._mesh)
        try:
            if not problem:
                recorded = self._open_log(stream, source.info.topics, source.info.codec)
                self.refused.pop(stream, None)
                self._refused_at.pop(stream, None)
                self.lender.on_new_stream()
                return recorded
        except LogLocked as error:
            problem = f"{error.problem}: give the recorder a data_dir of its own"
        self._refused_at[stream] = now
        if self.refused.get(stream) != problem and len(self.refused) < STREAMS_MAX:
            self.refused[stream] = problem
            text = "%s is not recorded: %s %s"
            log.error(text, stream, folder.path, problem, extra={"stream": stream})
        return None

    def _lose(self, books: Books, delivery: Delivery) -> Loss:
        """What is not kept, as it is entered in the books."""
        if isinstance(delivery, Loss):
            loss = delivery
        else:
            first, stop = (delivery.frame.first + n for n in (delivery.lo, delivery.hi))
            loss = Loss(books.stream, books.epoch, first, stop, "gone")
        self._counters["unrecorded"] += loss.count
        return loss

    def _refuse(self, recorded: RecordedLog, books: Books, delivery: Delivery) -> Loss:
        """An epoch that lies before those that are kept cannot be put into their order."""
        loss = self._lose(books, delivery)
        recorded.lost += loss.count
        if recorded.refused_epoch != books.epoch:
            recorded.refused_epoch = books.epoch
            log.error(
                "%s: epoch %d lies before epoch %d, which is recorded: it is not kept. Was the "
                "publisher's clock set back?",
                recorded.stream,
                books.epoch,
                recorded.place[0],
                extra={"stream": recorded.stream},
            )
        return loss

    # --- figures: any thread ---

    def guards(self) -> list[Guard]:
        """What looks after the threads of the recorder, and of those who read here."""
        return [self.guard, self.lender.guard]

    @property
    def losses(self) -> list[Loss]:
        """The newest losses, as they were found."""
        return [] if self.intake is None else list(self.intake.losses)

    @property
    def lost(self) -> int:
        """Events of recorded streams that nobody has."""
        return sum(log.lost for log in self.logs.values())

    def stats(self) -> dict[str, Any]:
        """What is kept, as plain data."""
        return {
            "topics": list(self._config.topics),
            "problem": self.problem or self.guard.problem,
            "refused": [{"stream": s, "reason": r} for s, r in list(self.refused.items())],
            "streams": [
                {
                    "stream": recorded.stream,
                    "epoch": recorded.place[0],
                    "next": recorded.place[1],
                    "events": recorded.events,
                    "frames": recorded.frames,
                    "bytes": recorded.bytes,
                    "lost": recorded.lost,
                    **recorded.writer.kept(),
                }
                for recorded in list(self.logs.values())
            ],
        }


def _size(delivery: Delivery) -> int:
    return 64 if isinstance(delivery, Loss) else len(delivery.frame.data)
