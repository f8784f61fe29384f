"""`drop_oldest`: a slow subscriber loses events, is told which, and goes on with the rest."""

from meshmsg import Loss, Peer, Stream, Tuning

# Small queues, so that a small program can overrun them.
SMALL = Tuning(queue_frames=4, inbox_bytes_max=64 * 1024)
COUNT = 300_000


def main() -> None:
    quotes = Stream("quotes.**", overflow="drop_oldest", buffer_bytes="1MiB")
    with (
        Peer("pricing", streams=[quotes], tuning=SMALL) as pricing,
        Peer("slow", connect=pricing.address, tuning=SMALL) as slow,
        slow.subscribe("quotes.**", on_loss=print_loss) as events,
    ):
        pricing.wait_for_subscribers("quotes.AAPL", timeout=5)
        # The publisher is never slowed down: it does not wait for anybody.
        last = pricing.publish_many("quotes.AAPL", [b"%064d" % n for n in range(COUNT)])

        delivered = 0
        for event in events:  # only now does the subscriber start to read
            delivered += 1
            if event.seq == last.seq:
                break
        print(f"{COUNT} published = {delivered} delivered + {events.lost} lost")
        print("the publisher's ledger has the same figure:", pricing.ledger().rows[0].lost)
        assert delivered + events.lost == COUNT


def print_loss(loss: Loss) -> None:
    """Called in the place of the missing events, between those before and those after."""
    print("lost:", loss.first, "to", loss.stop - 1, "of", loss.stream, "reason:", loss.reason)


if __name__ == "__main__":
    main()
