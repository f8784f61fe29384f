"""A peer's figures over HTTP: metrics for Prometheus, probes for an orchestrator, a live page.

>>> from meshmsg import Peer
>>> with Peer("pricing", monitor="127.0.0.1:0") as peer:
...     host, port = peer.monitor.address

A program that is more than a peer adds what it has to show: `peer.monitor.add(part)`.
Needs `pip install 'meshmsg[monitor]'`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from typing import Any

from meshmsg._bridge.lifecycle import Edge
from meshmsg._model.errors import BindError, ClosedError, ConfigError
from meshmsg._model.monitor_config import Monitor
from meshmsg._peer.peer import PeerBase
from meshmsg._runtime.guard import Guard
from meshmsg.monitor.answers import Answers
from meshmsg.monitor.http_messages import Answer, Request
from meshmsg.monitor.http_server import HttpServer
from meshmsg.monitor.live import LiveView
from meshmsg.monitor.parts import Part, peer_part
from meshmsg.transports.discovery.addresses import is_loopback

__all__ = ["MonitorServer"]

log = logging.getLogger("meshmsg.monitor")


class MonitorServer(Edge):
    """Serves the page, `/metrics`, `/health`, `/ready` and `/stats` from its start to `close`.

    Raises `BindError`, and `ConfigError` where it would listen beyond loopback without a token.
    """

    def __init__(self, config: Monitor, name: str) -> None:
        super().__init__()
        host, port = config.place
        secret = config.secret()
        if secret is None and not is_loopback(host):
            problem = f"{host} is beyond this machine, and everybody there could read topics and"
            problem += " names: write token_file=, or set MESHMSG_MONITOR_TOKEN_FILE"
            raise ConfigError("monitor.token", problem)
        self.config = config
        self._parts: list[Part] = []
        self._counters: Counter[str] = Counter()
        self._others: list[Part] = []
        self._guard = Guard(f"the monitor of {name}", self._counters, "failures")
        self._server = HttpServer(host, port, self._answer, self._counters)
        self._live = LiveView(
            name, self._server.send_all, self._server.watchers, self._sink, self._counters
        )
        self._answers = Answers(
            name,
            self._parts,
            secret,
            config.series_max,
            self._counters,
            time.monotonic,
            self._live.first,
        )
        self._address: tuple[str, int] = ("", 0)

    def start(self) -> None:
        """Listen from here on; raises `BindError`."""
        self._check_unopened()
        self._address = self._server.open()
        self._begin(self._run, "monitor")

    def __enter__(self) -> MonitorServer:
        self.start()
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens at."""
        return self._address

    def show(self, peer: PeerBase) -> None:
        """Show a peer, and the mesh that it is in."""
        self._parts.append(peer_part(peer, self.config))
        self._live.show(peer)

    def add(self, part: Part) -> None:
        """Show something else, too."""
        self._parts.append(part)
        self._others.append(part)

    def close(self) -> None:
        """Hang up and stop listening.  Safe to call again."""
        self._stopping.set()
        self._live.close()
        self._server.wake()
        if self._thread is None:
            self._server.close()
        elif threading.current_thread() is not self._thread:  # the last to let go of a peer
            self._thread.join()

    def _run(self) -> None:
        try:
            self._guard.drive(self._turn, self._stopping.wait)
        finally:
            self._server.close()

    def _turn(self) -> bool:
        self._server.turn()
        return not self._stopping.is_set()

    def _sink(self) -> Any:
        """Figures of a sink's tables, where this program has some."""
        for part in self._others:
            with contextlib.suppress(ClosedError):
                if (figures := part().figures.get("sink")) is not None:
                    return figures
        return None

    def _answer(self, request: Request) -> Answer:
        try:
            return self._answers.answer(request)
        except Exception:
            self._guard.failed(f"an answer for {request.path[:40]!r}")
            return Answer(500, b"this is a defect: the program's log says more\n")


def open_monitor(peer: PeerBase) -> MonitorServer | None:
    """The monitor that a peer's configuration asks for, listening; raises as it does."""
    config = peer.config.monitor
    if config is None or not config.is_on:
        return None
    made = open_server(config, peer.name)
    if made is not None:
        made.show(peer)
    return made


def open_server(config: Monitor, name: str) -> MonitorServer | None:
    """A monitor that listens and shows nothing yet; `None` where the address is taken and that
    is no reason to stop.  Raises `BindError`, `ConfigError`."""
    made = MonitorServer(config, name)
    try:
        made.start()
    except BindError as error:
        made.close()
        if config.required:
            raise
        log.warning("MESHMSG_MONITOR: %s; %s has no monitor", error, name)
        return None
    return made
