"""The writing end of a durable log: its lock, its epochs, what it removes, and who makes it safe.

The records of an epoch are `appender`'s business.  Any thread may append and flush; `open`,
`begin`, `follow` and `close` are for one thread.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from meshmsg import _platform
from meshmsg._model.errors import ClosedError, LogError, LogFull, LogLocked, ProtocolError
from meshmsg._model.log_policy import FsyncWord, Retention
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import Frame
from meshmsg._wire.tail_frame import TailFrame
from meshmsg.recovery.log.appender import Appender, LogSettings, TailEvent, events_of, failure
from meshmsg.recovery.log.commit import IDLE_S, Committer
from meshmsg.recovery.log.cursors import Cursors
from meshmsg.recovery.log.extent import Extent
from meshmsg.recovery.log.files import File, Files, Held
from meshmsg.recovery.log.folder import CURSORS_FOLDER, LOCK_FILE, About, LogFolder
from meshmsg.recovery.log.format import (
    FRAME_RECORD,
    LOSS_RECORD,
    NOTE_BYTES_MAX,
    SegmentName,
    in_effect,
    latest_time,
)
from meshmsg.recovery.log.journal import Journal, write_journal
from meshmsg.recovery.log.open_recovery import Recovery, recover
from meshmsg.recovery.log.retention import expired, not_held
from meshmsg.recovery.log.retention_holds import Holds
from meshmsg.recovery.log.segment import Segment
from meshmsg.recovery.stream.histogram import Histogram

log = logging.getLogger("meshmsg.recovery")

#: How often a log that begins no new segment is looked through for what has expired.
RETAIN_NS = 30 * 10**9
#: With more than `retention` has room for written since it was looked what has expired, and more
#: than this, whoever appends waits until that is gone.
LATE_BYTES_MIN = 1024 * 1024
#: A frame with at most so many bytes and events is not worth a record of its own.
SMALL_BYTES = 8 * 1024
SMALL_EVENTS = 32
#: How often cursors that have moved are written.
SAVE_NS = 10**9


class LogWriter:
    """The one writer of a stream's log.

    >>> with LogWriter("data", "pricing/orders.**") as log:                    # doctest: +SKIP
    ...     epoch = log.begin(time.time_ns() // 1000)
    ...     log.append(frame, first=0, stop=100)
    ...     log.flush()
    """

    def __init__(
        self,
        data_dir: str,
        stream: str,
        *,
        mesh: str = "default",
        codec: str = "msgpack",
        settings: LogSettings | None = None,
        files: Files | None = None,
        clock: Callable[[], int] = _platform.time_ns,
        background: bool = True,
    ) -> None:
        self.settings = settings or LogSettings()
        self.stream = stream
        self.folder = LogFolder.of(data_dir, stream, files=files)
        self.counters: Counter[str] = Counter()
        self._sync_times = Histogram()
        self.recovery = Recovery()  #: what `open` found
        self._about = About(stream, mesh, stream_wire_id(mesh, stream), codec)
        self._fsync = FsyncWord.parse(self.settings.fsync)
        self._files = self.folder.files
        self._extent = Extent(self.folder)
        self._clock = clock
        self._lock_file: File | None = None
        self._journal = Journal()
        self._journal_lock = _platform.new_lock()
        self._retain_lock = _platform.new_lock()
        self._appender: Appender | None = None
        self._ended: tuple[int, int] | None = None  # an epoch that the journal has yet to close
        self._rolled = False
        self._turns = 0  # of the tail, when it was made safe last
        self._retained_ns = 0
        most = self.settings.retention.bytes_max
        self._late_bytes_max = math.inf if most is None else max(most, LATE_BYTES_MIN)
        self._looked_bytes = 0  # had been stored when it was looked what has expired
        self._saved_ns = 0
        self.holds = Holds(self.cursors(), stream, clock, self.settings.hold_timeout_s)
        self._committer: Committer | None = None
        self._defect = ""  # the last one that was told
        if background:
            interval_s = self._fsync.interval_s
            self._committer = Committer(
                self.work, interval_s, f"meshmsg log {stream}", self._tell_defect
            )

    def _tell_defect(self, error: Exception) -> None:
        """Log a defect with its trace, once while it is the same."""
        if repr(error) != self._defect:
            self._defect = repr(error)
            log.error("%s: a commit failed", self.folder.path, exc_info=error)

    # --- life ---

    def __enter__(self) -> LogWriter:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Recovery:
        """Lock and recover the log; raises `LogLocked`, `LogError`."""
        files, path = self._files, self.folder.path
        try:
            files.make_folder(path)
            self._lock_file = files.lock(f"{path}/{LOCK_FILE}")
            self.folder.claim(self._about)  # before anything in it is touched
            self.recovery = recover(self.folder)
            self.holds.load()
            self._journal = self.recovery.journal
        except Held as held:
            raise LogLocked(path, held.pid) from None
        except OSError as error:
            self._release()
            raise failure(path, error, "could not be opened") from error
        except BaseException:
            self._release()
            raise
        if self.recovery.cut_bytes:
            log.warning("%s: cut off %d bytes of a torn write", path, self.recovery.cut_bytes)
        for problem in self.recovery.problems:
            log.warning("%s: %s", path, problem)
        self._rolled = True  # what has expired meanwhile goes first
        if self._committer is not None:
            self._committer.start()
            self._committer.want()
        return self.recovery

    def _release(self) -> None:
        held, self._lock_file = self._lock_file, None
        if held is not None:
            held.close()

    def begin(self, epoch: int, first: int = 0) -> int:
        """Start a new epoch, `epoch` or the next that was never used; safe when this returns.

        Raises `LogError`, `LogFull`.
        """
        chosen = max(epoch, self._newest() + 1)
        self._start(chosen, first)
        return chosen

    def follow(self, epoch: int, first: int) -> int:
        """Keep another peer's epoch from `first` on; returns the number that is wanted next.

        Raises `LogError`, also for an epoch that lies before one that is there.
        """
        if self._appender is not None and epoch == self.epoch:
            return self.next
        newest = self._newest()
        if epoch < newest:
            raise LogError(self.folder.path, f"epoch {epoch} lies before epoch {newest}")
        last = self.recovery.last
        if last is not None and epoch == last.epoch:
            first = self.recovery.next  # what is missing up to `first` is noted by who knows why
        self._start(epoch, first)
        return self.next

    def settle(self) -> None:
        """Write down what `open` found, where no epoch begins at once; raises `LogError`."""
        try:
            with self._journal_lock:
                self._journal = write_journal(self._files, self.folder.path, self._journal)
        except OSError as error:
            raise failure(self.folder.path, error, "the journal could not be written") from error

    def _newest(self) -> int:
        return max(self.recovery.last_epoch, self.epoch)

    def _start(self, epoch: int, first: int) -> None:
        if self._lock_file is None:
            raise ClosedError("the log is not open: use it in a with block")
        if self._appender is not None:
            self._appender.store()  # on a full disk it is not let go: the next one makes a new tail
        old, self._appender = self._appender, None
        try:
            if old is not None:
                # Remembered, should any of this fail: else readers would take it for empty.
                self._ended = (old.epoch, old.next)
                old.close()
            if self._ended is not None:
                ended, stop = self._ended
                self._record(ended, stop, stop)
                self._ended = None
            self._record(epoch, first, None)
            self.recovery.last_epoch = epoch
            last = self.recovery.last
            self._looked_bytes = self._turns = 0
            self._appender = Appender(
                self._files,
                self.folder.path,
                self._about.wire_id,
                self.settings,
                self.counters,
                epoch=epoch,
                term=last.term + 1 if last is not None and last.epoch == epoch else 0,
                first=first,
                tracks=self._fsync.word != "never",
                clock=self._clock,
                on_roll=self._on_roll,
                sync_times=self._sync_times,
            )
        except OSError as error:
            what = "a new epoch could not be recorded"
            raise failure(self.folder.path, error, what) from error

    def _record(self, epoch: int, first: int, stop: int | None) -> None:
        """Write into the journal where an epoch began and ended."""
        with self._journal_lock:
            known = self._journal.find(epoch)
            journal = self._journal.with_epoch(epoch, first if known is None else known.first, stop)
            self._journal = write_journal(self._files, self.folder.path, journal)

    def close(self) -> None:
        """End the segment, make everything safe and let the lock go; raises `LogError`."""
        if self._committer is not None:
            self._committer.stop()
        appender, self._appender = self._appender, None
        try:
            self._save_holds()
        except LogError as error:  # what is held then is more than need be
            log.warning("%s", error)
        try:
            if appender is not None:
                appender.close()
                # So that a reader knows what is missing, should the end be damaged one day.
                self._record(appender.epoch, appender.next, appender.next)
        except OSError as error:
            raise failure(self.folder.path, error, "could not be closed properly") from error
        finally:
            self._release()

    # --- writing and making safe: any thread ---

    @property
    def epoch(self) -> int:
        """The epoch that is written; 0 before `begin`."""
        return 0 if self._appender is None else self._appender.epoch

    @property
    def next(self) -> int:
        """The number that the next event has to have, or in a recorder's log at least has."""
        return self._open().next

    @property
    def durable(self) -> int:
        """Events of this epoch before this number are safe."""
        return self._open().durable

    def _open(self) -> Appender:
        appender = self._appender
        if appender is None:
            raise ClosedError("the log is closed, or no epoch has begun")
        return appender

    def append(self, frame: bytes, first: int, stop: int, time_ns: int | None = None) -> int:
        """Write a frame, and with `always` wait for the disk; returns what to `sync`.

        Raises `LogFull`, `LogError`.  From `write`, then nothing was written.  From waiting for
        the disk, it was: `sync` waits again, and nobody may be told that the event is safe.
        """
        self.write(frame, first, stop, time_ns)
        if self._fsync.word == "always":
            self.sync(stop)
        return stop

    def write(self, frame: bytes, first: int, stop: int, time_ns: int | None = None) -> int:
        """Write a frame; it outlives this process when this returns.  Raises as `append`.

        A small one is not stored as it is: its events gather with others in the tail.
        """
        small = self._small(frame, first, stop)
        if small is not None:
            self.add(events_of(small))
            return stop
        latest = latest_time(frame) if time_ns is None else time_ns
        self._write(FRAME_RECORD, frame, first, stop, latest)
        return stop

    def _small(self, frame: bytes, first: int, stop: int) -> Frame | None:
        """A frame whose events fit into the tail, and would be the same there."""
        most = min(SMALL_BYTES, self.event_bytes_max)
        if len(frame) > most or stop - first > SMALL_EVENTS or first != self.next:
            return None
        try:
            found = Frame(frame)
        except ProtocolError:
            return None
        said = (found.stream, found.epoch, found.first, found.stop)
        return found if said == (self._about.wire_id, self.epoch, first, stop) else None

    def append_loss(self, first: int, stop: int, reason: str, time_ns: int = 0) -> None:
        """Record that these events are missing here and why; raises as `write`."""
        note = reason.encode()[:NOTE_BYTES_MAX]
        self._write(LOSS_RECORD, note, first, stop, time_ns)

    def _write(self, kind: int, content: bytes, first: int, stop: int, time_ns: int) -> None:
        try:
            self._open().write(kind, content, first, stop, time_ns)
        except LogFull as error:
            raise self.holds.explain(error) from error
        self._wrote()

    def add(self, events: Sequence[TailEvent]) -> None:
        """Add small events behind all others; raises as `write`."""
        try:
            self._open().add(events)
        except LogFull as error:
            raise self.holds.explain(error) from error
        self._wrote()

    def make_room(self, needed: int) -> None:
        """Make room for an event of so many bytes in the tail, which `frame` is added to.

        Returns at once if another thread has made it meanwhile.  Raises as `write`.
        """
        try:
            if not self._open().make_room(needed):
                return
        except LogFull as error:
            raise self.holds.explain(error) from error
        self._wrote()

    @property
    def frame(self) -> TailFrame:
        """The tail, to which any thread adds small events unless it is shut.

        In a `with` block it keeps everybody else out.
        """
        return self._open().frame

    @property
    def event_bytes_max(self) -> int:
        """What an event may have to be added to the tail; none may where this is 0."""
        return self.settings.area_bytes // 4

    def want(self) -> None:
        """Have what was added to the tail made safe as `fsync` says."""
        if self._committer is not None and self._fsync.by_thread:
            self._committer.want()

    def _wrote(self) -> None:
        appender = self._open()
        self.want()
        if appender.unsynced_bytes > self.settings.unsynced_bytes_max:
            self.counters["sync_waits"] += 1
            appender.sync(appender.stored, in_segments=True)
        if appender.stored_bytes - self._looked_bytes > self._late_bytes_max:
            self._keep_up()

    def sync(self, stop: int, timeout: float | None = None) -> None:
        """Return when all events before `stop` are on the disk; with `never`, at once.

        Raises `LogError`, `WaitTimeout`.
        """
        if self._fsync.word != "never":
            self._open().sync(stop, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Return when all that was written is safe, as far as the `fsync` word promises it.

        Raises `LogError`, `WaitTimeout`.
        """
        self.sync(self.next, timeout)

    # --- in the background ---

    def work(self) -> float:
        """What the committer does: make safe what is written, remove what has expired.

        Returns in how many seconds it is to be done again, if nothing is written before.
        """
        appender = self._appender
        if appender is not None:
            appender.store_aged()
        if appender is not None and self._fsync.by_thread:
            self._commit(appender)
        now_ns = self._clock()
        if abs(now_ns - self._saved_ns) > SAVE_NS:  # the clock may be set back
            self._saved_ns = now_ns
            self._save_holds()
        each_ns = RETAIN_NS if self._extent.oldest_ns is not None else SAVE_NS
        if self._rolled or abs(now_ns - self._retained_ns) > each_ns:
            self._rolled = False
            self._retained_ns = now_ns
            self._extent.look()
            if self.retain(now_ns):
                self._extent.look()
        if not self.holds.has_moved:
            return IDLE_S
        return max(0.0, (self._saved_ns + SAVE_NS - now_ns) / 1e9)

    def _commit(self, appender: Appender) -> None:
        """Make safe what was published, by segments alone while the tail fills quickly.

        An area of the tail that was synced has to wait for its segment before it is used again;
        where it is soon full, its events are safe as soon in the segment.
        """
        turns, self._turns = self._turns, appender.turns
        busy = turns != appender.turns
        if self._committer is not None:
            self._committer.busy = busy
        if not busy:
            appender.sync(appender.next)
            return
        appender.sync(appender.stored, in_segments=True)
        if appender.durable < appender.next:
            self.want()

    def _on_roll(self) -> None:
        self._rolled = True
        if self._committer is not None:
            self._committer.want()

    def _keep_up(self) -> None:
        """The thread that removes what has expired is too slow for all that comes: do it here."""
        self.counters["retention_waits"] += 1
        try:
            self.retain()
        except (ClosedError, LogError):  # the event is in the log; who tells of this tries again
            self._on_roll()

    def retain(self, now_ns: int | None = None) -> list[SegmentName]:
        """Remove what has expired; returns the segments that are gone.  Raises `LogError`."""
        retention = self.settings.retention
        if retention.age_s is None and retention.bytes_max is None:
            return []
        with self._retain_lock:  # one at a time, or an older look would put the floor back
            return self._retain(retention, now_ns)

    def _retain(self, retention: Retention, now_ns: int | None) -> list[SegmentName]:
        path = self.folder.path
        if self._appender is not None:
            self._looked_bytes = self._appender.stored_bytes
        self._save_holds()
        try:
            # Twice: a listing may pass over names while others are made, and what it passes over
            # must not be taken for gone.
            sizes = self.folder.sizes() | self.folder.sizes()
            if self._appender is not None:
                sizes |= self._appender.used()  # without the space that is only reserved
            segments = in_effect(sizes)
            free = expired(
                [(name, sizes[name]) for name in segments],
                retention,
                now_ns=self._clock() if now_ns is None else now_ns,
                latest_ns=self._latest_ns,
            )
            gone = not_held(free, segments, self.cursors().held())
            self.holds.account(sum(sizes[name] for name in free[len(gone) :]))
            if gone:
                self._make_safe()  # what stays, before anything goes
                first = segments[len(gone)]
                with self._journal_lock:  # first the books, so that what is gone is known to be
                    journal = self._journal._replace(floor=(first.epoch, first.first))
                    self._journal = write_journal(self._files, path, journal)
            for name in gone:
                self._files.remove(f"{path}/{name.file}")
                with contextlib.suppress(OSError):
                    self._files.remove(f"{path}/{name.index_file}")
        except OSError as error:
            raise failure(path, error, "what has expired could not be removed") from error
        self.counters["expired_segments"] += len(gone)
        return gone

    def _make_safe(self) -> None:
        appender = self._appender
        if appender is not None and self._fsync.word != "never":
            appender.sync(appender.next)

    def _latest_ns(self, name: SegmentName) -> int:
        """The time of a segment's newest event, or when the file was written last."""
        path = self.folder.path
        segment = Segment.open(self._files, path, name)
        try:
            ending = segment.ending()
        finally:
            segment.close()
        if ending is not None:
            return ending.time_ns
        return self._files.modified_ns(f"{path}/{name.file}")

    def hold(self, name: str, epoch: int, seq: int) -> bool:
        """Keep what comes from here on for a consumer, until it moves; whether that is new.

        Raises `LogError`.
        """
        return self.holds.begin(name, epoch, seq)

    def move_hold(self, name: str, epoch: int, seq: int) -> None:
        """A consumer is done with all before this."""
        if not self.holds.move(name, epoch, seq):
            self.counters["commits_unheld"] += 1
        elif self._committer is not None:
            self._committer.want()

    def _save_holds(self) -> None:
        for name in self.holds.save():
            self.counters["dropped_cursors"] += 1
            text = "%s: the cursor %r was dropped and holds nothing more"
            log.warning(text, self.stream, name, extra={"stream": self.stream})

    def cursors(self) -> Cursors:
        """The cursors that are kept beside the log, and may hold retention."""
        return Cursors(f"{self.folder.path}/{CURSORS_FOLDER}", files=self._files)

    def kept(self) -> dict[str, Any]:
        """What is on the disk, as it was found last, at most `RETAIN_NS` ago; for people."""
        appender, oldest_ns = self._appender, self._extent.oldest_ns
        age_ns = None if oldest_ns is None else max(0, self._clock() - oldest_ns)
        return {
            "disk_bytes": self._extent.bytes({} if appender is None else appender.used()),
            "oldest_s": None if age_ns is None else age_ns / 1e9,
            "retention": self.settings.retention.word,
        }

    def stats(self) -> dict[str, Any]:
        """Figures, for people."""
        appender = self._appender
        if appender is None:
            return {"path": self.folder.path, "open": False, **self.kept()}
        error = None if self._committer is None else self._committer.error
        return {
            "path": self.folder.path,
            "open": True,
            "epoch": appender.epoch,
            "next": appender.next,
            "durable": appender.durable,
            "unsynced_bytes": appender.unsynced_bytes,
            "holds": self.holds.count,
            "held_bytes": self.holds.held_bytes,
            "problem": None if error is None else str(error),
            **self.kept(),
            "sync_s": self._sync_times.as_dict(),
            **self.counters,
        }
