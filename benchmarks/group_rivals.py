"""The servers that meshmsg's work groups are measured beside: started on loopback, then stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from types import TracebackType

from benchmarks.space import Missing

START_S = 90.0


class Server:
    """A server of a rival, in a folder of its own."""

    name = ""
    command = ""

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = tempfile.mkdtemp(prefix=f"bench-{self.name}-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where its clients connect to."""
        return f"127.0.0.1:{self.port}"

    def _start(self, program: str, folder: str) -> tuple[list[str], dict[str, str]]:
        raise NotImplementedError

    def __enter__(self) -> Server:
        program = shutil.which(self.command, path=f"/usr/lib/rabbitmq/bin:{_path()}")
        if program is None:
            raise Missing(f"{self.command} is not installed (Debian: apt install {self.command})")
        arguments, environment = self._start(program, self._folder)
        with open(os.path.join(self._folder, "output.txt"), "wb") as output:
            self._process = subprocess.Popen(
                arguments,
                env={**os.environ, **environment},
                cwd=self._folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise Missing(f"{self.command} did not start")
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # the session that was started here
            except ProcessLookupError:
                pass
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Nats(Server):
    """NATS with JetStream."""

    name = "nats"
    command = "nats-server"

    def _start(self, program: str, folder: str) -> tuple[list[str], dict[str, str]]:
        return [program, "-js", "-sd", folder, "-a", "127.0.0.1", "-p", str(self.port)], {}


class Rabbit(Server):
    """RabbitMQ."""

    name = "rabbitmq"
    command = "rabbitmq-server"

    def _start(self, program: str, folder: str) -> tuple[list[str], dict[str, str]]:
        settings = os.path.join(folder, "rabbitmq.conf")
        with open(settings, "w", encoding="utf-8") as file:
            file.write(f"listeners.tcp.default = 127.0.0.1:{self.port}\n")
        return [program], {
            "HOME": folder,
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": settings,
            "RABBITMQ_MNESIA_BASE": os.path.join(folder, "mnesia"),
            "RABBITMQ_LOG_BASE": os.path.join(folder, "log"),
            "RABBITMQ_PID_FILE": os.path.join(folder, "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": os.path.join(folder, "plugins"),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }


RIVALS: dict[str, type[Server]] = {"nats": Nats, "rabbitmq": Rabbit}


def free_port() -> int:
    """A port of loopback that nobody has at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
    except OSError:
        return False
    return True


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin"
