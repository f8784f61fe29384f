"""What the verbs of the edges (webhook, statsd, nng) have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from meshmsg import Peer, Stream
from meshmsg.cli._guard import BAD, complain
from meshmsg.cli._options import peer_from

ANY_PORT = ["tcp://127.0.0.1:*"]
LOOK_S = 0.5


class Working(Protocol):
    """A bridge, whose thread may have ended."""

    @property
    def alive(self) -> bool:
        """Whether it works."""


def publishing_peer(
    kind: str,
    stream: Stream,
    *,
    mesh_bind: Sequence[str] | None,
    connect: Sequence[str] | None,
    name: str | None,
    mesh: str | None,
    config: Path | None,
    discovery: str | None = None,
    interface: str | None = None,
    data_dir: Path | None = None,
    monitor: str | None = None,
) -> Peer:
    """A peer, not yet open, that publishes what comes in; durable if it is given a folder."""
    return peer_from(
        kind,
        bind=mesh_bind or (None if connect or config else ANY_PORT),
        connect=connect,
        # A durable stream belongs to a name: a random one would begin a new log each time.
        name=name or (None if config or data_dir is None else kind),
        mesh=mesh,
        config=config,
        discovery=discovery,
        interface=interface,
        streams=[stream if data_dir is None else replace(stream, durability="log")],
        data_dir=data_dir,
        monitor=monitor,
    )


def stay(bridge: Working) -> int:
    """Until the command is ended; or the bridge is by itself, which only a defect does."""
    while bridge.alive:
        time.sleep(LOOK_S)
    complain("it has ended by itself: the log says why")
    return BAD


def raise_file_limit() -> None:
    """A request is an open file, and the usual limit of 1024 is not meant for servers."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # pragma: no cover - then with what there is
            complain(f"the limit of open files stays at {soft}: {error}")
