"""`publish` is safe from any thread: nothing is lost and the order of each thread is kept."""

import threading
from collections import defaultdict

from meshmsg import Peer

THREADS, EVENTS = 8, 5000


def main() -> None:
    with (
        Peer("workers") as workers,
        Peer("collector", connect=workers.address) as collector,
        collector.subscribe("results.*") as events,
    ):
        workers.wait_for_subscribers("results.0", timeout=5)
        threads = [threading.Thread(target=work, args=(workers, n)) for n in range(THREADS)]
        for thread in threads:
            thread.start()

        received = defaultdict(list)
        for _ in range(THREADS * EVENTS):
            event = events.get(timeout=5)
            received[event.topic].append(event.data)
        for thread in threads:
            thread.join()

    for topic, values in sorted(received.items()):
        in_order = values == list(range(EVENTS))
        print(topic, len(values), "events,", "in order" if in_order else "OUT OF ORDER")
        assert in_order


def work(peer: Peer, number: int) -> None:
    """One of the threads: all publish through the same peer, into the same stream."""
    for n in range(EVENTS):
        peer.publish(f"results.{number}", n)


if __name__ == "__main__":
    main()
