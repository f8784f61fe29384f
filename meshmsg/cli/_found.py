"""Peers that are found: who is there, and who comes and goes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from meshmsg import Peer, PeerInfo
from meshmsg.cli._asking import asking
from meshmsg.cli._guard import BAD, GOOD, note, usage
from meshmsg.cli._options import peer_from
from meshmsg.cli._tables import console, table
from meshmsg.cli._values import clock_time, safe, to_json
from meshmsg.doctor import names_twice, others_text

#: Nobody new for this long: the others would have been found, too.
QUIET_S = 1.0


@contextmanager
def looking(
    connect: Sequence[str] | None,
    mesh: str | None,
    discovery: str | None,
    interface: str | None,
) -> Iterator[Peer]:
    """A peer that looks for others; those in `connect` are where it begins."""
    if discovery == "none" and not connect:
        raise usage("--connect", "name at least one peer to ask: --connect tcp://127.0.0.1:7000")
    with peer_from(
        "ask",
        bind=None,
        connect=connect,
        name=None,
        mesh=mesh,
        interface=interface,
        discovery=discovery,
    ) as peer:
        yield peer


@contextmanager
def answering(
    connect: Sequence[str] | None,
    mesh: str | None,
    discovery: str | None,
    interface: str | None,
    timeout_s: float,
    wait_s: float,
) -> Iterator[Peer]:
    """A peer that has found whom to ask, or is connected to every address that was given."""
    if connect:
        with asking(connect, mesh, timeout_s) as peer:
            yield peer
        return
    with looking(connect, mesh, discovery, interface) as peer:
        wait_for_found(peer, wait_s)
        yield peer


def wait_for_found(peer: Peer, wait_s: float) -> list[PeerInfo]:
    """Return all that were found by the time that nobody new came, of other folders or of ours."""
    deadline = time.monotonic() + wait_s
    count, since = 0, time.monotonic()
    while (now := time.monotonic()) < deadline:
        found = len(peer.peers()) + len(peer.stats()["discovery"]["elsewhere"])
        if found != count:
            count, since = found, now
        if count and now - since >= QUIET_S:
            break
        time.sleep(0.05)
    return peer.peers()


def show_found(peer: Peer, found: Sequence[PeerInfo], *, json: bool) -> int:
    """A line for each peer; 1 if there is none."""
    if json:
        for info in found:
            print(to_json(info.as_dict()))
    elif found:
        rows = table("", "peer", "address", "roles", "streams", "groups", "version")
        for info in found:
            rows.add_row(
                info.name,
                " ".join(info.addresses) or "-",
                " ".join(info.roles) or "-",
                " ".join(info.streams) or "-",
                " ".join(info.groups) or "-",
                info.software,
            )
        console().print(rows)
    for name, count in names_twice(found).items():
        note(f"{count} peers have the name {name!r}, and nobody takes events of the later ones")
    tried = peer.stats()["discovery"]
    if tried["elsewhere"] and not json:
        note(others_text(len(tried["elsewhere"]), "--mesh"))
    if found:
        return GOOD
    config, zeroconf = peer.config, tried["zeroconf"]
    why = f" (zeroconf: {zeroconf['reason']})" if zeroconf["reason"] else ""
    note(
        f"no peer of mesh {config.mesh!r} was found on {config.interface}{why}. Is one running, "
        f"with this --mesh? Elsewhere: name the --interface, or one peer with --connect. "
        f"`meshmsg doctor` looks for what is in the way"
    )
    return BAD


def show_changes(peer: Peer, *, json: bool) -> int:
    """A line for each change, until Ctrl-C."""
    with peer.watch_peers() as watch:
        for change in watch:
            info = change.peer
            if json:
                line = to_json({"change": change.kind, "time": change.time, **info.as_dict()})
            else:
                doing = " ".join((*info.roles, *info.streams, *info.groups))
                where = info.addresses[0] if info.addresses else "-"
                clock = clock_time(int(change.time * 1e9))
                line = f"{clock}  {change.kind:8} {info.name:20} {where:28} {doing}".rstrip()
            print(safe(line), flush=True)
    return GOOD
