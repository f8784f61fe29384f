"""`block`: the publisher waits for a slow subscriber, can say for whom, and can stop waiting."""

from meshmsg import Peer, PublishTimeout, Stream

PAYLOAD = b"x" * 1000


def main() -> None:
    orders = Stream("orders.**", overflow="block", window_bytes="256KiB", evict_after="1s")
    with (
        Peer("shop", streams=[orders]) as shop,
        Peer("billing", connect=shop.address) as billing,
        billing.subscribe("orders.**", name="invoices") as events,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=5)
        accepted = publish_until_blocked(shop)
        stats = shop.stats()["streams"]["orders.**"]
        print(f"{accepted} orders accepted, then blocked by {stats['blocked_by']}")

        # The subscriber reads: the stream opens again.
        for _ in range(accepted):
            events.get(timeout=5)
        shop.publish("orders.eu", PAYLOAD, timeout=5)
        print("after it has read, publishing works again")

        # It stalls for longer than evict_after: the stream stops waiting for it.
        publish_until_blocked(shop)
        shop.publish("orders.eu", PAYLOAD, timeout=5)
        while not events.evictions:
            events.get(timeout=5)
        print("evicted:", events.evictions[0])


def publish_until_blocked(peer: Peer) -> int:
    """Publish until the stream does not take more at once."""
    accepted = 0
    try:
        while True:
            peer.publish("orders.eu", PAYLOAD, timeout=0.2)
            accepted += 1
    except PublishTimeout as error:
        print("blocked:", error)
    return accepted


if __name__ == "__main__":
    main()
