"""Peers that give no addresses find each other; where multicast is blocked, one seed is enough."""

import os

from meshmsg import Discovery, Peer, Stream

MESH = f"example-{os.getpid()}"  # meshes are kept apart: this one is ours


def main() -> None:
    # By zeroconf: on loopback, or on the network that interface= names.
    by_itself = Discovery(zeroconf=True)
    with (
        Peer("pricing", mesh=MESH, discovery=by_itself, streams=[Stream("quotes.**")]) as pricing,
        Peer("desk", mesh=MESH, discovery=by_itself) as desk,
        desk.subscribe("quotes.**") as quotes,
    ):
        pricing.wait_for_subscribers("quotes.AAPL", timeout=20)
        pricing.publish("quotes.AAPL", 187.2)
        print("by zeroconf:", quotes.get(timeout=10).data)

    # By gossip: everybody knows the first peer, and hears of the others from it.
    with Peer("first", mesh=MESH, discovery="gossip") as first:
        seeds = Discovery(zeroconf=False, seeds=first.address)  # a DNS name would do as well
        with (
            Peer("second", mesh=MESH, discovery=seeds) as second,
            Peer("third", mesh=MESH, discovery=seeds) as third,
        ):
            for peer in (first, second, third):
                peer.wait_for_peers(2, timeout=20)
            print("second found", sorted(info.name for info in wait_for_two(second)))

            # What was tried, and why it failed, is part of the figures.
            for contact in second.stats()["discovery"]["contacts"]:
                print(f"  {contact['peer']}: {contact['state']}, told by {contact['sources']}")


def wait_for_two(peer: Peer) -> list:
    """Those who are connected say at once who they are."""
    with peer.watch_peers() as watch:
        while len(peer.peers()) < 2:
            watch.get(timeout=10)
    return peer.peers()


if __name__ == "__main__":
    main()
