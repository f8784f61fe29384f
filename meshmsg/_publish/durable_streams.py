"""The durable streams of a peer: their logs, what is answered from them, and who holds them.

Joins `LogWriter`s and the `Replay` thread to the publishing side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from meshmsg import _platform
from meshmsg._model.codecs import codec_for
from meshmsg._model.config import PeerConfig, Stream
from meshmsg._model.errors import LogError
from meshmsg._model.log_policy import Retention
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.streams import Streams
from meshmsg._replay.log_reads import Chapter, Replay
from meshmsg._replay.recorded_log import adopt
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire.control import Commit, Nack, Start
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.loss_detector import NEVER

log = logging.getLogger("meshmsg.peer")

#: A subscription whose start could not be found in a log that cannot be read is tried again ...
RETRY_S = 0.5
#: ... after twice the time each time, up to this.
RETRY_MAX_S = 10.0
#: A stream that sent something within this time is live.
LIVE_NS = 100_000_000


class DurableSide:
    """All logs of a peer."""

    def __init__(
        self,
        config: PeerConfig,
        streams: Streams,
        control: ControlSender,
        wake: Callable[[], None],
        send_safe: Callable[[Outlet], None],
    ) -> None:
        self._config = config
        self._streams = streams
        self._control = control
        self._wake = wake
        self._send_safe = send_safe  # what has come to the disk; with the lock held
        self._counters = streams.counters
        self.logs: list[LogWriter] = []
        self._notes = LogLimit(log, streams.counters)
        self.error: LogError | None = None  #: why a log was not closed properly
        self.replay = Replay(f"meshmsg-{config.name}", streams.counters, self._is_live)
        self._again: dict[tuple[int, str], tuple[float, Callable[[], None]]] = {}

    def open_log(self, stream: Stream, name: str, epoch: int) -> LogWriter:
        """The log of a durable stream, with a new epoch begun; raises `LogError`."""
        config = self._config
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
        deadline = None if timeout is None else _platform.monotonic() + timeout
        for outlet in list(self._streams.outlets.values()):
            if outlet.log is not None:
                left = None if deadline is None else max(0.0, deadline - _platform.monotonic())
                outlet.log.flush(left)
                if outlet.sender.holds:
                    with self._streams.lock:
                        self._send_safe(outlet)

    # --- who starts in the past ---

    def look_up(
        self,
        key: tuple[int, str],
        label: str,
        job: Callable[[], None],
        put_off: Callable[[str], bool] = lambda problem: True,
    ) -> None:
        """With the lock held: have somebody's start looked up in a log, by `job`.

        On the replay's thread.  What cannot be read now is tried again, for as long as `put_off`,
        which is called with the lock held, returns True.
        """
        self._again.pop(key, None)
        self._submit(key, partial(self._try, key, label, job, put_off, RETRY_S))

    def _submit(self, key: tuple[int, str], job: Callable[[], None]) -> None:
        self.replay.submit(("start", *key), job)

    def _try(
        self,
        key: tuple[int, str],
        label: str,
        job: Callable[[], None],
        put_off: Callable[[str], bool],
        retry_s: float,
    ) -> None:
        try:
            job()
        except LogError as error:
            later = min(retry_s * 2, RETRY_MAX_S)
            with self._streams.lock:
                if not put_off(error.problem):
                    return
                self._counters["admission_retries"] += 1
                again = partial(self._try, key, label, job, put_off, later)
                self._again[key] = (_platform.monotonic() + retry_s, again)
            text = "%s has to wait for its start: %s"
            self._notes.error(text, label, error, key=error.problem)
        self._wake()  # members come and go on the I/O thread only

    def find(self, outlet: Outlet, start: Start, holder: str) -> tuple[Start, list[Chapter]]:
        """On the replay's thread: where a start lies in this epoch, and what comes before that.

        From there on the log is kept for its `holder`, if that is not empty.  Raises `LogError`.
        """
        found = self._find(outlet, start)
        if holder and self._hold(holder, outlet, *found):
            found = self._find(outlet, start)  # what is there now stays there
        return found

    def _find(self, outlet: Outlet, start: Start) -> tuple[Start, list[Chapter]]:
        assert outlet.log is not None
        if start.kind == "live" or start.kind == "origin":
            return start, []
        chapters, seq = self.replay.chapters(outlet.log.folder, start, outlet.epoch)
        origin = outlet.sender.origin if seq is None else seq
        return Start(outlet.stream, "resume", origin, outlet.epoch), chapters

    def on_tick(self, now: float) -> float:
        """With the lock held: try again what is due; returns when to come again."""
        for key, (due, job) in list(self._again.items()):
            if due <= now:
                del self._again[key]
                self._submit(key, job)
        return min((due for due, _ in self._again.values()), default=NEVER)

    # --- who holds the log ---

    def _hold(self, holder: str, outlet: Outlet, begin: Start, chapters: list[Chapter]) -> bool:
        """Keep what a subscription has yet to read, from where it starts; whether that is new."""
        assert outlet.log is not None
        if chapters:
            epoch, seq = chapters[0].epoch, chapters[0].start
        else:
            epoch, seq = outlet.epoch, begin.value if begin.kind == "resume" else outlet.next
            if begin.kind == "origin":
                seq = outlet.sender.origin
        return outlet.log.hold(holder, epoch, seq)

    def on_commit(self, holder: str, message: Commit) -> None:
        """With the lock held: a subscription that holds the log says what it is done with."""
        for place in message.places:
            outlet = self._streams.outlets.get(place.stream)
            if not holder or outlet is None or outlet.log is None:
                self._counters["strange_commits"] += 1
            elif (place.epoch, place.seq) > (outlet.epoch, outlet.next):
                self._counters["strange_commits"] += 1  # the future
            else:
                outlet.log.move_hold(holder, place.epoch, place.seq)

    # --- repair from the log ---

    def _is_live(self) -> bool:
        """Whether events are being published, so that somebody waits for them."""
        since = _platform.time_ns() - LIVE_NS
        return any(outlet.sent_ns > since for outlet in list(self._streams.outlets.values()))

    def answer(self, link: bytes, outlet: Outlet, message: Nack) -> None:
        """Send again what only the log has, or the spill."""
        job = partial(self._answer, link, outlet, message)
        self.replay.submit(("nack", message.sub, message.stream), job, gives_way=True)

    def _answer(self, link: bytes, outlet: Outlet, message: Nack) -> None:
        """On the replay's thread."""
        bytes_max = self._config.tuning.repair_bytes_max
        folder, epoch, ranges = outlet.disk, message.epoch, message.ranges
        frames, gone = self.replay.frames(folder, epoch, ranges, bytes_max)
        self._control.answer_nack(link, message, frames, gone)
        self._counters["replayed_frames"] += len(frames)
