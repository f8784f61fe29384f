"""A standalone Spark cluster on loopback: a Master and Workers, each its own process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import pyspark

from meshmsg.spark_sink import ensure_java
from tests.conftest import JAVA
from tests.support import processes

ROOT = Path(__file__).parent.parent.parent
SPARK_HOME = Path(pyspark.__file__).parent
#: Six JVMs on a machine with other work.
START_S = 500


class Cluster:
    """A Master and some Workers of one core each."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._folder.mkdir()
        self._count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        ensure_java()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        self._master = self._start("master.Master", "--port", str(port))
        try:
            self._wait_for("master.Master", "I have been elected leader", 1)
            for number in range(self._count):
                work = self._folder / f"work{number}"
                options = ("--cores", "1", "--memory", "1g", "--work-dir", str(work), self.url)
                self.workers.append(self._start("worker.Worker", *options))
            self._wait_for("master.Master", "Registering worker", self._count)
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"-Dspark.master.rest.enabled=false {JAVA}",
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }
        command = [SPARK_HOME / "bin/spark-class", f"org.apache.spark.deploy.{kind}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *options]
        with (self._folder / f"{kind}.log").open("ab") as log:
            return processes.start(
                command, env=environment, cwd=self._folder, stdout=log, stderr=subprocess.STDOUT
            )

    def _wait_for(self, kind: str, text: str, count: int) -> None:
        deadline = time.monotonic() + START_S
        path = self._folder / f"{kind}.log"
        while path.read_text(errors="replace").count(text) < count:
            assert time.monotonic() < deadline, path.read_text(errors="replace")[-3000:]
            time.sleep(0.1)

    def stop(self) -> None:
        """End all that is left; what a Worker started ends with it."""
        for process in [*self.workers, self._master]:
            if process is not None and process.poll() is None:
                process.terminate()
        for process in [*self.workers, self._master]:
            if process is not None:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(30)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
