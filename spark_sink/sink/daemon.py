"""The sink daemon: records the mesh, drives Spark in a process of its own, and keeps the figures.

Belongs here: the life of the two, and what is held in the log until it is in every table.  Does not
belong here: batches (`batch`), how figures are shown (the command line, `metrics`).

The recorder lives in this process and goes on while Spark starts, fails and starts again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from typing import Any

import msgspec

from meshmsg import ConfigError, LogError, MeshError, Peer, PeerConfig
from meshmsg._peer.peer import config_arguments, node_of
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.folder import CURSORS_FOLDER, LogFolder, find_logs
from meshmsg.spark_sink.java import ensure_java
from meshmsg.spark_sink.sink.config import SinkConfig
from meshmsg.spark_sink.sink.driver import AGAIN, GOOD
from meshmsg.spark_sink.sink.journal import read_positions
from meshmsg.spark_sink.source import planning
from meshmsg.spark_sink.source import positions as at
from meshmsg.spark_sink.source.log_source import LogSource

log = logging.getLogger("meshmsg.spark_sink")

#: How often cursors follow the tables.
CURSORS_S = 2.0
RESTART_S_MIN, RESTART_S_MAX = 0.5, 30.0
#: With `once`: so many drivers in a row that write nothing are the end.
ONCE_DRIVERS_MAX = 4
#: A driver that is told to stop has so long to finish its batch.
STOP_S = 120.0
#: One that has not begun is not waited for: it has nothing to finish.
STOP_EARLY_S = 5.0
NOTES_MAX = 100
LOG_BYTES_MAX = 10_000_000
#: Events that wait while no batch is written for so long, and three triggers, are said to be stuck.
STUCK_S = 60.0


class SinkFailed(MeshError):
    """The daemon cannot go on; the text says why."""


class _OutputState:
    """What is known of one output."""

    def __init__(self) -> None:
        self.positions: at.Positions = {}
        self.known = False
        self.commits = self.events = self.rows = self.lost = self.quarantined = self.bytes = 0
        self.again = self.failures = 0
        self.problem: str | None = None  #: why the last batch failed, until one is written
        self.batch_ms = self.write_ms = self.stage_ms = 0.0
        self.newest_time = 0.0
        self.is_through = False  #: this driver has written a batch, or had nothing to write
        self.waits_since: float | None = None  #: events do, and no batch was written
        self.batches: deque[float] = deque(maxlen=100)


class SinkDaemon:
    """Runs between `__enter__` and `close`; `poll` is to be called often.

    >>> with SinkDaemon(config, peer) as daemon:                               # doctest: +SKIP
    ...     while daemon.poll():
    ...         time.sleep(0.1)
    """

    def __init__(self, config: SinkConfig, peer: PeerConfig | None = None) -> None:
        self.config = config
        self.peer: Peer | None = None
        self.notes: deque[str] = deque(maxlen=NOTES_MAX)  #: words for the user, to be taken
        self.ready = False  #: whether queries run
        self.restarts = 0
        self.finished = False  #: with `once`: all is written
        self._peer_config = peer
        self._states = {output.name: _OutputState() for output in config.outputs}
        self._lock = threading.Lock()
        self._driver: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._error: str | None = None
        self._usage = False
        self._start_at = 0.0
        self._delay_s = RESTART_S_MIN
        self._fruitless = 0  #: drivers that ended since the last commit
        self._cursors_at = 0.0
        self._began = time.time()
        self._source = LogSource(config.log)
        self._in = (time.monotonic(), 0)
        self._stopping = False
        self._recorded = 0  #: when it was closed
        self._folders: dict[str, str] = {}  #: of logs that somebody else writes, by stream

    # --- life ---

    def __enter__(self) -> SinkDaemon:
        config = self.config
        ensure_java()
        try:
            for folder in (config.state, config.log):
                os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise ConfigError("state", f"{error.filename}: {error.strerror}") from None
        self._hold_all()
        self._look_up()
        if config.source is None and self._peer_config is not None:
            settings = config_arguments(self._peer_config)
            peer = Peer(**{**settings, "data_dir": config.log, "record": config.record()})
            self.peer = peer.__enter__()
        if not config.once:
            self.drive()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drive(self) -> None:
        """Start the process that drives Spark."""
        path = f"{self.config.state}/driver.log"
        with contextlib.suppress(FileNotFoundError):
            if os.path.getsize(path) > LOG_BYTES_MAX:
                os.replace(path, f"{path}.old")
        with open(path, "ab") as words:
            self._driver = subprocess.Popen(
                [sys.executable, "-m", "meshmsg.spark_sink.sink.driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,
            )
        assert self._driver.stdin is not None
        with contextlib.suppress(OSError):
            self._driver.stdin.write(msgspec.json.encode(self.config) + b"\n")
            self._driver.stdin.flush()
        self._reader = threading.Thread(target=self._read, args=(self._driver,), daemon=True)
        self._reader.start()

    def poll(self) -> bool:
        """Look after everything; `False` when with `once` all is written.

        Raises `ConfigError` or `SinkFailed` when it makes no sense to go on.
        """
        now = time.monotonic()
        if now - self._cursors_at > CURSORS_S:
            self._cursors_at = now
            if self.config.source is not None:
                self._hold_all()  # a recorder does it itself for streams that are new
            self._move_cursors()
        driver = self._driver
        if driver is None:
            if self._start_at and now >= self._start_at and not self._stopping:
                self._start_at = 0.0
                self.restarts += 1
                self.drive()
            return not self.finished
        status = driver.poll()
        if status is not None:
            self._ended(driver, status)
        return not self.finished

    def _ended(self, driver: subprocess.Popen[bytes], status: int) -> None:
        self._reap(driver)
        if status == GOOD:
            self.finished = True
            self._move_cursors()
            return
        if self._error is not None:
            raise ConfigError("sink", self._error) if self._usage else SinkFailed(self._error)
        what = f"signal {-status}" if status < 0 else f"status {status}"
        if status != AGAIN or not self.notes:
            self._note(f"Spark's driver ended with {what} and is started again")
        self._fruitless += 1
        if self.config.once and self._fruitless >= ONCE_DRIVERS_MAX:
            problems = [s.problem for s in self._states.values() if s.problem is not None]
            why = problems[0] if problems else f"the last one ended with {what}"
            log_path = f"{self.config.state}/driver.log"
            text = f"Spark was started {self._fruitless} times and wrote nothing: {why}"
            raise SinkFailed(f"{text} ({log_path})")
        self._start_at = time.monotonic() + self._delay_s
        self._delay_s = min(self._delay_s * 2, RESTART_S_MAX)

    def _reap(self, driver: subprocess.Popen[bytes]) -> None:
        """Nothing of a driver is left, whatever ended it."""
        self.ready = False
        end_session(driver.pid)
        if self._reader is not None:
            self._reader.join(10)
        for pipe in (driver.stdin, driver.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        driver.wait()
        self._driver = self._reader = None

    def close(self) -> None:
        """Finish the batches that are being written, end Spark and the recorder."""
        self._stopping = True
        driver = self._driver
        try:
            if driver is not None:
                assert driver.stdin is not None
                with contextlib.suppress(OSError):
                    driver.stdin.write(b"stop\n")
                    driver.stdin.flush()
                wait_s = STOP_S if self.ready else STOP_EARLY_S
                try:
                    driver.wait(wait_s)
                except subprocess.TimeoutExpired:
                    if self.ready:
                        self._note(f"Spark did not end within {wait_s:.0f} s and was killed")
                self._reap(driver)
                self._move_cursors()
        finally:
            self._recorded = self.recorded()
            peer, self.peer = self.peer, None
            if peer is not None:
                peer.close()

    # --- what the driver says ---

    def _read(self, driver: subprocess.Popen[bytes]) -> None:
        assert driver.stdout is not None
        for line in driver.stdout:
            try:
                fields = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError:
                continue
            with self._lock:
                self._take(fields)

    def _take(self, said: dict[str, Any]) -> None:
        kind = said.get("kind")
        state = self._states.get(said.get("output", ""))
        if kind == "ready":
            self.ready = True
            for one in self._states.values():
                one.is_through, one.waits_since = False, None
        elif kind == "error":
            self._error, self._usage = said["text"], said["usage"]
        elif kind == "note":
            self._note(said["text"])
        elif kind == "failed":
            for one in [state] if state is not None else self._states.values():
                one.failures += state is not None
                one.problem = said["text"]
            self._note(
                f"{said['output'] or 'the driver'} failed and is tried again: {said['text']}"
            )
        elif state is not None and kind == "at":
            state.positions, state.known = said["positions"], True
        elif state is not None and kind == "took":
            state.batch_ms = said["ms"]
            state.batches.append(said["ms"])
        elif state is not None and kind == "again":
            state.again += 1
        elif state is not None and kind == "commit":
            self._delay_s, self._fruitless = RESTART_S_MIN, 0
            state.positions, state.known = said["positions"], True
            state.commits += 1
            state.problem = None
            state.is_through, state.waits_since = True, None
            for key in ("events", "rows", "lost", "quarantined", "bytes"):
                setattr(state, key, getattr(state, key) + said[key])
            state.write_ms, state.stage_ms = said["write_ms"], said["stage_ms"]
            state.newest_time = max(state.newest_time, said["newest_time"])

    def _note(self, text: str) -> None:
        log.info("%s", text)
        self.notes.append(text)

    # --- what the log must keep ---

    def _hold_all(self) -> None:
        """Nothing goes before it is known to be in every table."""
        ours = {self.config.cursor(output) for output in self.config.outputs}
        for folder in find_logs(self.config.log):
            if folder.path in self._folders.values():
                continue
            about = folder.about()
            if about is None:
                continue
            self._folders[about.stream] = folder.path
            cursors = Cursors(f"{folder.path}/{CURSORS_FOLDER}")
            try:
                for name in ours:
                    if cursors.get(name, about.stream) is None:
                        cursors.set(Cursor(name, about.stream, 0, 0, hold=True))
            except OSError as error:
                if self.config.source is None:
                    raise
                self._note(f"{about.stream} is not held for us, it may expire unread: {error}")
            if self.config.source is None:
                for cursor in cursors.all():
                    if cursor.name.startswith("sink-") and cursor.name not in ours:
                        self._note(f"{cursor.name} is no output any more and holds nothing")
                        cursors.remove(cursor.name, cursor.stream)

    def _move_cursors(self) -> None:
        """Let the log drop what is in the tables."""
        with self._lock:
            places = {
                self.config.cursor(output): at.by_stream(self._states[output.name].positions)
                for output in self.config.outputs
                if self._states[output.name].known
            }
        for name, streams in places.items():
            for stream, epochs in streams.items():
                epoch = max(epochs)
                try:
                    self._move_cursor(name, stream, epoch, epochs[epoch])
                except LogError as error:  # the log keeps more for it, and nothing is lost
                    self._note(str(error))

    def _move_cursor(self, name: str, stream: str, epoch: int, seq: int) -> None:
        recorder = None if self.peer is None else node_of(self.peer).recorder
        recorded = None if recorder is None else recorder.logs.get(stream)
        if recorded is not None:
            if not recorded.writer.holds.move(name, epoch, seq):
                recorded.writer.hold(name, epoch, seq)
            return
        folder = self._folders.get(stream) or LogFolder.of(self.config.log, stream).path
        if not os.path.isdir(folder):
            return
        cursors = Cursors(f"{folder}/{CURSORS_FOLDER}")
        known = cursors.get(name, stream)
        if known is None or (known.epoch, known.seq) != (epoch, seq):
            cursors.set(Cursor(name, stream, epoch, seq, hold=True, time_ns=time.time_ns()))

    # --- figures ---

    def _look_up(self) -> None:
        """What the tables have already, for the figures: Spark needs a while to say it."""
        for output in self.config.outputs:
            with contextlib.suppress(OSError):  # the driver will say what is wrong with it
                self._states[output.name].positions = read_positions(output.out)

    def recorded(self) -> int:
        """Events recorded since the start."""
        if self.peer is None:
            return self._recorded
        return sum(row["events"] for row in self.peer.stats()["recorder"]["streams"])

    def connected(self) -> bool:
        """Whether a publisher is there, or none is expected."""
        if self.peer is None:
            return True
        return any(link["state"] == "up" for link in self.peer.stats()["links"])

    def figures(self) -> dict[str, Any]:
        """How things stand, as plain data."""
        survey = self._source.survey()
        now = time.monotonic()
        stats = None if self.peer is None else self.peer.stats()
        events = self.recorded()
        before, count = self._in
        self._in = (now, events)
        with self._lock:
            outputs = [self._output(name, survey, now) for name in self._states]
            through = all(state.is_through for state in self._states.values())
        problems = [row["problem"] for row in outputs if row["problem"]]
        if stats is not None and stats["recorder"]["problem"]:
            problems.insert(0, stats["recorder"]["problem"])
        return {
            "ready": self.ready and through and not problems,
            "events_in": events,
            "events_in_s": round((events - count) / max(now - before, 1e-6)),
            "streams": len(survey.streams),
            "peers": 0 if stats is None else sum(x["state"] == "up" for x in stats["links"]),
            "problem": problems[0] if problems else None,
            "restarts": self.restarts,
            "outputs": outputs,
        }

    def _problem(self, state: _OutputState, lag: int, now: float) -> str | None:
        """Return why nothing gets into a table, as far as that is known."""
        if not (self.ready and lag):
            state.waits_since = None
            state.is_through |= self.ready
            return state.problem if lag else None
        if state.waits_since is None:
            state.waits_since = now
        waited_s = now - state.waits_since
        if state.problem or waited_s < STUCK_S + 3 * float(self.config.trigger):
            return state.problem
        return f"{lag:,} events wait, and no batch was written for {waited_s:.0f} s"

    def _output(self, name: str, survey: at.Survey, now: float) -> dict[str, Any]:
        state = self._states[name]
        target = planning.available(state.positions, survey)
        waiting = planning.backlog(state.positions, target, survey)
        lag = sum(r.events for r in waiting)
        since = state.newest_time or self._began
        ordered = sorted(state.batches)
        return {
            "output": name,
            "commits": state.commits,
            "events": state.events,
            "rows": state.rows,
            "lost": state.lost,
            "quarantined": state.quarantined,
            "bytes": state.bytes,
            "lag_events": lag,
            "lag_s": round(max(0.0, time.time() - since), 3) if lag else 0.0,
            "batch_ms": state.batch_ms,
            "write_ms": state.write_ms,
            "stage_ms": state.stage_ms,
            "batch_ms_p50": ordered[len(ordered) // 2] if ordered else 0.0,
            "failures": state.failures,
            "problem": self._problem(state, lag, now),
            "repeated": state.again,
        }


def end_session(leader: int) -> None:
    """Kill all processes of a session that we began: Java, and workers in groups of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    try:
        others = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return  # workers end by themselves when their Java does
    for pid in others:
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)
