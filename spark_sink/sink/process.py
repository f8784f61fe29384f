"""The daemon as a process of its own, for programs that want a table beside what they do.

>>> with SinkProcess("./lake/quotes", "--connect", address) as sink:            # doctest: +SKIP
...     peer.publish_many("quotes.AAPL", quotes)
...     sink.wait_rows(len(quotes), timeout=120)
...     print(sink.read().num_rows)
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from meshmsg import MeshError, WaitTimeout

STOP_S = 150.0


class SinkEnded(MeshError):
    """The daemon has ended; the text is what it said."""


class SinkProcess:
    """`meshmsg sink --out OUT ... --json` between `__enter__` and `stop`.

    `arguments` are those of the command line.  `prefix` is put before it, as `nice` would be.
    """

    def __init__(self, out: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        self.out = out
        self.figures: dict[str, Any] = {}  #: the newest
        self.words = ""  #: what it said on standard error
        command = [sys.executable, "-m", "meshmsg", "sink", "--out", out, "--json"]
        self._command = [*prefix, *command, *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> SinkProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> SinkProcess:
        """Start it; it records from then on, and writes when Spark is there."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdout=pipe, stderr=pipe)
        self._threads = [
            threading.Thread(target=self._read_figures, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_words, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def _read_figures(self, lines: Any) -> None:
        for line in lines:
            self.figures = msgspec.json.decode(line)

    def _read_words(self, lines: Any) -> None:
        for line in lines:
            self.words += line.decode(errors="replace")

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status, once it has ended."""
        return None if self._process is None else self._process.poll()

    def stop(self, timeout: float = STOP_S) -> int:
        """SIGTERM: the batch is finished, then it ends; returns the exit status."""
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.terminate()
        return self.join(timeout)

    def join(self, timeout: float = STOP_S) -> int:
        """Wait for its end; it is killed when the time is up.  Returns the exit status."""
        process = self._process
        assert process is not None
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join(10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return process.returncode

    # --- waiting and reading ---

    def output(self) -> dict[str, Any]:
        """The figures of the first output; empty before there are any."""
        outputs = self.figures.get("outputs") or [{}]
        found: dict[str, Any] = outputs[0]
        return found

    def wait_for(self, what: Callable[[], Any], timeout: float) -> None:
        """Return when `what()` is true; raises `WaitTimeout`, `SinkEnded`."""
        deadline = time.monotonic() + timeout
        while not what():
            if self.poll() is not None:
                raise SinkEnded(f"meshmsg sink ended with status {self.poll()}: {self.words}")
            if time.monotonic() > deadline:
                raise WaitTimeout(f"not within {timeout:g} s; figures: {self.figures}")
            time.sleep(0.05)

    def wait_ready(self, timeout: float = 300) -> None:
        """Return when Spark runs; raises `WaitTimeout`, `SinkEnded`."""
        self.wait_for(lambda: self.figures.get("ready"), timeout)

    def wait_rows(self, rows: int, timeout: float = 300) -> None:
        """Return when the table has so many rows; raises `WaitTimeout`, `SinkEnded`."""
        self.wait_for(lambda: self.rows() >= rows, timeout)

    def rows(self) -> int:
        """The rows in the table, counted in its files."""
        try:
            return int(self._dataset().count_rows())
        except (FileNotFoundError, pa.ArrowInvalid):
            return 0

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """The table, without Spark."""
        return self._dataset().to_table(columns=columns)

    def _dataset(self) -> Any:
        return ds.dataset(self.out, format="parquet", partitioning="hive")
