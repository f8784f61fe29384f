"""The durable streams of a peer: their logs, what is answered from them, and who holds them.

Joins `LogWriter`s and the `Replay` thread to the publishing side.  How single events of many
threads come into a log together is in `_together`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from meshmsg._model.codecs import codec_for
from meshmsg._model.config import Stream
from meshmsg._model.errors import LogError
from meshmsg._model.log_policy import Retention
from meshmsg._replay.log_reads import Chapter, Replay
from meshmsg._replay.recorded_log import adopt
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire.control import Commit, Nack, Start
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.loss_detector import NEVER

if TYPE_CHECKING:
    from meshmsg._publish.published_stream import Outlet
    from meshmsg._publish.publisher import PublisherSide
    from meshmsg._publish.subscribers import RemoteSubscription

log = logging.getLogger("meshmsg.peer")

#: A subscription whose start could not be found in a log that cannot be read is tried again ...
RETRY_S = 0.5
#: ... after twice the time each time, up to this.
RETRY_MAX_S = 10.0
#: A stream that sent something within this time is live.
LIVE_NS = 100_000_000


class DurableSide:
    """All logs of a peer."""

    def __init__(self, side: PublisherSide, name: str) -> None:
        self._side = side
        self.counters = side.counters
        self.logs: list[LogWriter] = []
        self.notes = LogLimit(log, side.counters)
        self.error: LogError | None = None  #: why a log was not closed properly
        self.replay = Replay(f"meshmsg-{name}", self.counters, self._is_live)
        self._again: dict[tuple[int, str], tuple[float, float, Callable[[], None]]] = {}

    def open_log(self, stream: Stream, name: str, epoch: int) -> LogWriter:
        """The log of a durable stream, with a new epoch begun; raises `LogError`."""
        config = self._side._config
        assert config.data_dir is not None
        writer = LogWriter(
            config.data_dir,
            name,
            mesh=config.mesh,
            codec=codec_for(stream.codec).name,
            settings=LogSettings(
                fsync=stream.fsync,
                segment_bytes=int(stream.segment_bytes),
                retention=Retention.parse(stream.retention),
                hold_timeout_s=config.tuning.hold_timeout_s,
            ),
        )
        writer.open()
        self.logs.append(writer)
        adopt(writer.folder)
        writer.begin(epoch)
        return writer

    def close(self) -> None:
        """Close the logs, last: what was published is in the kernel, whatever happens here."""
        self.replay.stop()
        logs, self.logs = self.logs, []
        for writer in logs:
            try:
                writer.close()
            except LogError as error:
                log.error("%s", error)
                self.error = error

    # --- making safe: any thread ---

    def flush(self, timeout: float | None) -> None:
        """Return when all that was published is as safe as `fsync` promises.

        Raises `LogError`, `WaitTimeout`.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for outlet in list(self._side._outlets.values()):
            if outlet.log is not None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                outlet.log.flush(left)
                if outlet.sender.holds:
                    with self._side._lock:
                        self.send_safe(outlet)

    def send_safe(self, outlet: Outlet) -> None:
        """With the lock held: send what has become safe, in order, whoever published it."""
        side = self._side
        if outlet.log is None or side._fanout is None:
            return
        for frame in outlet.sender.release(outlet.log.durable, now=time.monotonic()):
            side._send_frame(outlet, frame)

    # --- subscriptions that start in the past ---

    def wants(self, remote: RemoteSubscription, outlet: Outlet, start: Start) -> bool:
        """Whether a subscription has to be seen to here: only the log knows where it starts."""
        if outlet.log is None:
            return False
        if remote.hold:
            return True
        if start.kind in ("live", "origin"):
            return False
        return start.kind != "resume" or start.epoch != outlet.epoch

    def admit(self, remote: RemoteSubscription, outlet: Outlet, start: Start) -> None:
        """With the lock held: find where a start lies in the log, then admit."""
        key = (remote.sub, outlet.stream)
        self._again.pop(key, None)
        job = partial(self._try_to_admit, remote, outlet, start, RETRY_S)
        self.replay.submit(("admit", *key), job)

    def _try_to_admit(
        self, remote: RemoteSubscription, outlet: Outlet, start: Start, retry_s: float
    ) -> None:
        """On the replay's thread.  What cannot be read now is tried again, for as long as it is."""
        try:
            self._admit(remote, outlet, start)
        except LogError as error:
            later = min(retry_s * 2, RETRY_MAX_S)
            again = partial(self._try_to_admit, remote, outlet, start, later)
            with self._side._lock:
                if self._side.subscribers.subs.get(remote.sub) is not remote:
                    return
                self.try_again((remote.sub, outlet.stream), retry_s, again)
                self._side.subscribers.put_off(remote, outlet, error.problem)
            text = "%s has to wait for its start: %s"
            self.notes.error(text, remote.label, error, key=error.problem)
            self._side._wake()

    def try_again(self, key: tuple[int, str], retry_s: float, job: Callable[[], None]) -> None:
        """With the lock held: do what could not be done now after this long."""
        self.counters["admission_retries"] += 1
        self._again[key] = (time.monotonic() + retry_s, retry_s, job)

    def _admit(self, remote: RemoteSubscription, outlet: Outlet, start: Start) -> None:
        side = self._side
        assert outlet.log is not None
        begin, chapters = self._find(outlet, start)
        if remote.hold and self._hold(remote, outlet, begin, chapters):
            begin, chapters = self._find(outlet, start)  # what is there now stays there
        with side._changed:
            if side.subscribers.subs.get(remote.sub) is remote and side._fanout is not None:
                side.subscribers.admit_to(remote, outlet, begin, chapters, time.monotonic())
                side._changed.notify_all()

    def _find(self, outlet: Outlet, start: Start) -> tuple[Start, list[Chapter]]:
        """Where a start lies in the current epoch, and what comes before that."""
        assert outlet.log is not None
        if start.kind == "live" or start.kind == "origin":
            return start, []
        chapters, seq = self.replay.chapters(outlet.log.folder, start, outlet.epoch)
        origin = outlet.sender.origin if seq is None else seq
        return Start(outlet.stream, "resume", origin, outlet.epoch), chapters

    def on_tick(self, now: float) -> float:
        """With the lock held: try again what is due; returns when to come again."""
        for key, (due, _, job) in list(self._again.items()):
            if due <= now:
                del self._again[key]
                self.replay.submit(("admit", *key), job)
        return min((due for due, _, _ in self._again.values()), default=NEVER)

    # --- who holds the log ---

    def _hold(
        self, remote: RemoteSubscription, outlet: Outlet, begin: Start, chapters: list[Chapter]
    ) -> bool:
        """Keep what a subscription has yet to read, from where it starts; whether that is new."""
        assert outlet.log is not None
        if chapters:
            epoch, seq = chapters[0].epoch, chapters[0].start
        else:
            epoch, seq = outlet.epoch, begin.value if begin.kind == "resume" else outlet.next
            if begin.kind == "origin":
                seq = outlet.sender.origin
        return outlet.log.hold(remote.cursor, epoch, seq)

    def on_commit(self, remote: RemoteSubscription, message: Commit) -> None:
        """With the lock held: a subscription that holds the log says what it is done with."""
        for place in message.places:
            outlet = self._side._outlets.get(place.stream)
            known = outlet is not None and outlet.log is not None and remote.hold
            if not known or outlet is None or outlet.log is None:
                self.counters["strange_commits"] += 1
            elif (place.epoch, place.seq) > (outlet.epoch, outlet.next):
                self.counters["strange_commits"] += 1  # the future
            else:
                outlet.log.move_hold(remote.cursor, place.epoch, place.seq)

    # --- repair from the log ---

    def _is_live(self) -> bool:
        """Whether events are being published, so that somebody waits for them."""
        since = time.time_ns() - LIVE_NS
        return any(outlet.sent_ns > since for outlet in list(self._side._outlets.values()))

    def answer(self, link: bytes, outlet: Outlet, message: Nack) -> None:
        """Send again what only the log has, or the spill."""
        job = partial(self._answer, link, outlet, message)
        self.replay.submit(("nack", message.sub, message.stream), job, gives_way=True)

    def _answer(self, link: bytes, outlet: Outlet, message: Nack) -> None:
        """On the replay's thread."""
        bytes_max = self._side._tuning.repair_bytes_max
        folder, epoch, ranges = outlet.disk, message.epoch, message.ranges
        frames, gone = self.replay.frames(folder, epoch, ranges, bytes_max)
        self._side.subscribers.answer_nack(link, message, frames, gone)
        self.counters["replayed_frames"] += len(frames)
