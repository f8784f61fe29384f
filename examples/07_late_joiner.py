"""A subscriber that comes late can start with what the publisher still keeps in memory."""

import time

from meshmsg import Peer


def main() -> None:
    with Peer("news") as news:
        for n in range(1, 6):
            news.publish("headlines", f"headline {n}")
        noon = time.time()
        for n in range(6, 11):
            position = news.publish("headlines", f"headline {n}")

        with Peer("reader", connect=news.address) as reader:
            show(reader, "earliest")
            show(reader, "last:3")
            show(reader, noon)  # from a time on, in seconds since 1970
            show(reader, position)  # from an event on, itself included


def show(reader: Peer, start) -> None:
    """Subscribe, and read up to the tenth headline."""
    received = []
    with reader.subscribe("headlines", start=start) as events:
        while not received or received[-1] != "headline 10":
            received.append(events.get(timeout=5).data)
    print(f"start={start}: {len(received)} events, first {received[0]!r}")


if __name__ == "__main__":
    main()
