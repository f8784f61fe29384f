"""A sealed feed: read by whoever has the mesh key, without any connection, and by nobody else."""

import logging
import secrets
import time

from meshmsg import Feed, Multicast, Peer, Security, Stream
from meshmsg.testing import lose_packets

COUNT = 20_000


def main() -> None:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    ours = Security(mesh_key=secrets.token_urlsafe(32), rotate_every="1s", rotate_overlap="1s")
    other = Security(mesh_key=secrets.token_urlsafe(32), rotate_every="1s", rotate_overlap="1s")
    line = Multicast("239.255.7.7:30531")
    stream = Stream("trades.**", transport=line, overflow="block")
    feed = Feed("exchange", "trades.**", line)
    with (
        Peer("exchange", streams=[stream], security=ours, discovery="none") as exchange,
        Peer("desk", feeds=[feed], security=ours, discovery="none") as desk,
        Peer("stranger", feeds=[feed], security=other, discovery="none") as stranger,
        desk.subscribe("trades.**") as events,
        stranger.subscribe("trades.**") as nothing,
        lose_packets(desk, ratio=0.1, seed=3),
    ):
        # Who reports is known to the publisher; the stranger's reports are not understood.
        exchange.wait_for_subscribers("trades.X", count=1, timeout=10)
        first, sent = generation(exchange), 0
        until = time.monotonic() + 30
        while generation(exchange) < first + 2 and time.monotonic() < until:
            exchange.publish_many("trades.X", range(sent, sent + COUNT))
            received = [trade for batch in take(events, COUNT) for trade in batch.data]
            assert received == list(range(sent, sent + COUNT))
            sent += COUNT
        print(f"the key changed {generation(exchange) - first} times, {events.lost} events lost")
        print("the stranger got", nothing.get(timeout=0.2))
        print("of", nothing.stats()["counters"]["unknown_key"], "packets it could open none")


def generation(peer: Peer) -> int:
    """Of the key that the stream is sealed with."""
    return int(peer.stats()["streams"]["trades.**"]["multicast"]["generation"])


def take(events, count: int):
    """Batches, until so many events have come."""
    for batch in events.batches(timeout=10):
        yield batch
        count -= len(batch)
        if count <= 0:
            return


if __name__ == "__main__":
    main()
