"""Topics are dotted labels.  In a pattern, `*` is one level and `**` any number of levels."""

from meshmsg import Peer

TOPICS = ["quotes.eu.AAPL", "quotes.us.AAPL", "quotes.us.MSFT", "orders", "orders.eu.retail"]
PATTERNS = ["quotes.*.AAPL", "quotes.us.*", "orders.**", "**.AAPL", "**"]


def main() -> None:
    with Peer("pricing") as pricing, Peer("desk", connect=pricing.address) as desk:
        subscriptions = {pattern: desk.subscribe(pattern) for pattern in PATTERNS}
        # One subscription may have several patterns; an event that fits two comes once.
        both = ("quotes.us.**", "**.AAPL")
        subscriptions[" or ".join(both)] = desk.subscribe(*both)

        pricing.wait_for_subscribers("quotes.us.AAPL", count=5, timeout=5)
        pricing.wait_for_subscribers("orders", count=2, timeout=5)
        for topic in TOPICS:
            pricing.publish(topic, topic)
        pricing.flush(timeout=5)

        for pattern, events in subscriptions.items():
            with events:
                received = [event.topic for event in read_all(events)]
            print(f"{pattern:24} {', '.join(received)}")


def read_all(events):
    """What is there now: `flush` has waited until everyone received everything."""
    while (event := events.get(timeout=0.1)) is not None:
        yield event


if __name__ == "__main__":
    main()
