"""Several peers in one process, for `RemotePeer.use`."""

from __future__ import annotations

from collections.abc import Sequence

from meshmsg import Discovery, Peer, PeerWatch, Stream, Tuning


def open_peers(
    peer: Peer,
    prefix: str,
    count: int,
    mesh: str,
    *,
    seeds: Sequence[str],
    ping_s: float,
    silence_s: float,
) -> list[Peer]:
    """Open peers that find each other by seeds, or by the first of them."""
    peers: list[Peer] = []
    for n in range(count):
        found = Discovery(zeroconf=False, seeds=seeds or [p.address for p in peers[:1]])
        one = Peer(
            f"{prefix}-{n}",
            mesh=mesh,
            discovery=found,
            tuning=Tuning(ping_interval_s=ping_s, peer_timeout_s=silence_s),
            streams=[Stream(f"{prefix}.**")] if n == 0 else [],
        )
        peers.append(one.open())
    return peers


def changes(peer: Peer, watches: Sequence[PeerWatch]) -> list[list[tuple[str, str, float]]]:
    """What each of these has seen and was not asked for yet."""
    seen = []
    for watch in watches:
        mine = []
        while (change := watch.get(0)) is not None:
            mine.append((change.kind, change.peer.name, change.time))
        seen.append(mine)
    return seen
