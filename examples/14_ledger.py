"""The ledger: published = delivered + filtered + lost + in flight, for every subscription."""

from meshmsg import Peer, Stream

COUNT = 1000


def main() -> None:
    orders = Stream("orders.**")
    with (
        Peer("shop", streams=[orders]) as shop,
        Peer("office", connect=shop.address) as office,
        office.subscribe("orders.**", name="all") as everything,
        office.subscribe("orders.eu", name="europe") as europe,
        office.subscribe("orders.**", name="slow") as slow,
    ):
        shop.wait_for_subscribers("orders.eu", count=3, timeout=5)
        for n in range(COUNT):
            shop.publish("orders.eu" if n % 4 == 0 else "orders.us", n)

        for _ in range(COUNT):
            everything.get(timeout=5)
        for _ in range(COUNT // 4):
            europe.get(timeout=5)
        for _ in range(10):
            slow.get(timeout=5)
        europe.get(timeout=0)  # go past the last events, which are for others

        ledger = shop.ledger()
        print("subscription           published delivered filtered lost in flight")
        for row in ledger.rows:
            lost = sum(row.lost.values())
            print(
                f"{row.subscription:22} {row.published:9} {row.delivered:9} {row.filtered:8} "
                f"{lost:4} {row.in_flight:9} {'reconciles' if row.reconciles else 'DOES NOT'}"
            )
        assert ledger.reconciles
        slow.get_many(max=COUNT, timeout=5)


if __name__ == "__main__":
    main()
