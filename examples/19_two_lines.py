"""The same feed on two lines, A and B: what one of them loses comes by the other."""

from meshmsg import Multicast, Peer, Stream
from meshmsg.testing import lose_packets

COUNT = 50_000
LINE_A, LINE_B = "239.255.7.7:30191", "239.255.7.8:30193"


def main() -> None:
    both = Multicast(LINE_A, second=LINE_B)
    with (
        Peer("pricing", streams=[Stream("quotes.**", transport=both)]) as pricing,
        Peer("desk", connect=pricing.address) as desk,
        desk.subscribe("quotes.**") as events,
    ):
        pricing.wait_for_subscribers("quotes.AAPL", timeout=5)
        events.wait_for_publishers(timeout=5)
        print("                 first by A  first by B  asked for  lost")
        send(pricing, events, "both lines up")
        with lose_packets(desk, ratio=1.0, line=LINE_A):
            send(pricing, events, "line A is cut")
        with lose_packets(desk, ratio=0.05, seed=1):
            # Both must lose the same packet before anybody has to ask for it.
            send(pricing, events, "each loses 5 %")


def send(pricing, events, what: str) -> None:
    """Send and receive some quotes, and say which line brought how many packets first."""
    before = figures(events)
    pricing.publish_many("quotes.AAPL", range(COUNT))
    received = []
    for batch in events.batches(timeout=5):
        received += batch.data
        if len(received) == COUNT:
            break
    assert received == list(range(COUNT)), "each once, in order"
    by_a, by_b, asked = (new - old for new, old in zip(figures(events), before, strict=True))
    print(f"{what:15}  {by_a:10}  {by_b:10}  {asked:9}  {events.lost:4}")


def figures(events) -> tuple[int, int, int]:
    """Packets that came first by A, by B, and those asked for."""
    multicast = events.stats()["sources"][0]["multicast"]
    line_a, line_b = multicast["lines"]
    return line_a.get("first", 0), line_b.get("first", 0), multicast.get("asked_packets", 0)


if __name__ == "__main__":
    main()
