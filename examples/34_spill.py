"""`overflow="spill"`: a stalled subscriber holds nobody up, and gets everything when it is back."""

import threading

from meshmsg import Peer, Stream

TICKS = 200_000
STREAM = Stream("ticks.**", overflow="spill", buffer_bytes="4MiB", spill_bytes="1GiB")


def main() -> None:
    with (
        Peer("exchange", streams=[STREAM]) as exchange,
        Peer("screen", connect=exchange.address) as screen,
        Peer("report", connect=exchange.address) as report,
        screen.subscribe("ticks.**") as live,
        report.subscribe("ticks.**") as stalled,
    ):
        exchange.wait_for_subscribers("ticks.x", count=2, timeout=5)
        reader = threading.Thread(target=read, args=("screen", live))
        reader.start()
        for first in range(0, TICKS, 1000):
            exchange.publish_many("ticks.x", [b"%0500d" % n for n in range(first, first + 1000)])
        reader.join()

        stream = exchange.stats()["streams"]["ticks.**"]
        print("in memory:", stream["buffer_bytes"] // 1_000_000, "MB")
        assert stream["spill"]["bytes"] > 10_000_000
        print("on disk for the report: more than 10 MB")

        read("report", stalled)  # it comes back, and nothing is missing
        exchange.flush(timeout=5)
        print("left on disk:", exchange.stats()["streams"]["ticks.**"]["spill"]["bytes"])


def read(name: str, events) -> None:
    """Read all of it, in order."""
    wanted = 0
    for batch in events.batches():
        for payload in batch.payloads:
            assert int(payload) == wanted
            wanted += 1
        if wanted == TICKS:
            break
    print(f"{name} has all {wanted:,} ticks in order, {events.lost} lost")


if __name__ == "__main__":
    main()
