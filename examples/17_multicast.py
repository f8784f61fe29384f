"""A market-data feed over UDP multicast: three receivers lose 10 % of the packets, and no event."""

from contextlib import ExitStack

from meshmsg import Multicast, Peer, Stream
from meshmsg.testing import lose_packets

ROUNDS, QUOTES = 5, 50_000


def main() -> None:
    feed = Stream("quotes.**", transport=Multicast("239.255.7.7:30171"), overflow="block")
    with ExitStack() as stack:
        pricing = stack.enter_context(Peer("pricing", streams=[feed]))
        desks, readers = [], []
        for name in ("london", "paris", "tokyo"):
            # Only the publisher knows of multicast: these learn the group from it.
            desk = stack.enter_context(Peer(name, connect=pricing.address))
            readers.append(stack.enter_context(desk.subscribe("quotes.**")))
            desks.append(desk)
        pricing.wait_for_subscribers("quotes.AAPL", count=3, timeout=5)

        lossy = [
            stack.enter_context(lose_packets(desk, ratio=0.1, seed=seed))
            for seed, desk in enumerate(desks)
        ]
        print("packets  lost on the way  requests  suppressed  repairs  missing")
        for n in range(ROUNDS):
            first = n * QUOTES
            pricing.publish_many("quotes.AAPL", range(first, first + QUOTES))
            for events in readers:
                received = [quote for batch in take(events, QUOTES) for quote in batch.data]
                assert received == list(range(first, first + QUOTES)), "each once, in order"
            show(pricing, readers, lossy)
        print(f"{ROUNDS * QUOTES} quotes to each of three, {sum(e.lost for e in readers)} lost")


def take(events, count: int):
    """Batches, until so many events have come."""
    for batch in events.batches(timeout=5):
        yield batch
        count -= len(batch)
        if count <= 0:
            return


def show(pricing, readers, lossy) -> None:
    """Counters of the publisher, and of the receivers together."""
    sent = pricing.stats()["streams"]["quotes.**"]["multicast"]
    got = [events.stats()["sources"][0]["multicast"] for events in readers]
    requests = sum(one.get("nacks", 0) for one in got)
    suppressed = sum(one.get("suppressed", 0) for one in got) + sent.get("suppressed", 0)
    missing = sum(one["missing"] for one in got)
    print(
        f"{sent['packets']:7}  {sum(path.dropped for path in lossy):15}  {requests:8}  "
        f"{suppressed:10}  {sent.get('repairs', 0):7}  {missing:7}"
    )


if __name__ == "__main__":
    main()
