"""A feed received without any connection: the receiver is told where it is sent, and by whom."""

from meshmsg import Feed, Multicast, Peer, Stream
from meshmsg.testing import lose_packets

COUNT = 20_000


def main() -> None:
    line = Multicast("239.255.7.7:30181")
    feed = Feed("exchange", "trades.**", line)  # publisher, its stream's topics, where it is sent
    with (
        Peer("exchange", streams=[Stream("trades.**", transport=line)]) as exchange,
        Peer("recorder", feeds=[feed]) as recorder,  # no connect=: packets are all there is
        recorder.subscribe("trades.**") as events,
    ):
        # A receiver is known to the publisher by its reports; nobody has to send any.
        exchange.wait_for_subscribers("trades.X", count=1, timeout=10)
        print("connections of the recorder:", len(recorder.stats()["links"]))

        with lose_packets(recorder, ratio=0.1, seed=3) as path:
            exchange.publish_many("trades.X", range(COUNT))
            received = [trade for batch in take(events, COUNT) for trade in batch.data]
        assert received == list(range(COUNT))
        figures = events.stats()["sources"][0]["multicast"]
        print(f"{path.dropped} of {path.dropped + path.passed} packets lost on the way in")
        print(f"{figures['nacks']} requests to the group, {figures['repaired']} packets repaired")
        print(f"{len(received)} trades in order, {events.lost} lost")

        # A late joiner gets what the publisher still holds, over the same group.
        with Peer("late", feeds=[feed]) as late, late.subscribe("**", start="last:5") as newest:
            print("joined late:", [newest.get(timeout=10).data for _ in range(5)])


def take(events, count: int):
    """Batches, until so many events have come."""
    for batch in events.batches(timeout=5):
        yield batch
        count -= len(batch)
        if count <= 0:
            return


if __name__ == "__main__":
    main()
