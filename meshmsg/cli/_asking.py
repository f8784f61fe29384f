"""Asking peers for their figures: what `ledger` and `peers` have in common."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshmsg import Peer, PeerRefused, WaitTimeout
from meshmsg.cli._guard import usage
from meshmsg.cli._options import peer_from

POLL_S = 0.005


@contextmanager
def asking(connect: Sequence[str] | None, mesh: str | None, timeout_s: float) -> Iterator[Peer]:
    """A peer that is connected to every address; raises `WaitTimeout`, `PeerRefused`."""
    if not connect:
        raise usage("--connect", "name at least one peer to ask: --connect tcp://127.0.0.1:7000")
    with peer_from(
        "ask", bind=None, connect=connect, name=None, mesh=mesh, discovery="none"
    ) as peer:
        _wait_for_all(peer, timeout_s)
        yield peer


def ask(peer: Peer, what: str, timeout_s: float) -> list[dict[str, Any]]:
    """One answer from each peer; raises `WaitTimeout`."""
    answers = []
    for address, answer in peer.ask(what, timeout=timeout_s).items():
        if not isinstance(answer, dict):
            raise WaitTimeout(f"{address} answered with something that is not its {what}")
        answers.append({"address": address, **answer})
    return answers


def _wait_for_all(peer: Peer, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        links = peer.stats()["links"]
        for link in links:
            if link["state"] == "refused":
                raise PeerRefused(link["address"], link["reason"])
        # A peer with two addresses answers once.
        missing = [link["address"] for link in links if link["state"] not in ("up", "duplicate")]
        if not missing:
            return
        if time.monotonic() >= deadline:
            raise WaitTimeout(
                f"no peer answers at {', '.join(missing)} (waited {timeout_s:g} s): "
                f"is it running, and is that the address it listens at?"
            )
        time.sleep(POLL_S)
