"""An operator acts: dead letters go back to their group, and the group begins anew."""

from meshmsg import Peer, Stream


def main() -> None:
    with (
        Peer("shop", streams=Stream("jobs.**"), audit=True) as shop,
        Peer("worker", connect=shop.address) as worker,
        Peer("operator", connect=shop.address) as operator,
        worker.subscribe("jobs.**", group="workers", max_attempts=1, order="none") as events,
        operator.subscribe("mesh.audit.operated", start="earliest") as audit,
    ):
        operator.wait_for_peers(timeout=5)
        shop.wait_for_subscribers("jobs.pay", timeout=5)
        shop.publish_many("jobs.pay", ["invoice 7", "invoice 8"])
        work(events, 2, bank_is_open=False)

        # The bank is open again: what failed meanwhile comes once more, for this group alone.
        redriven = 0
        while redriven < 2:  # a dead letter is written a moment after it has failed
            redriven += order(operator, "group redrive", "workers")["redriven"]
        work(events, 2, bank_is_open=True)

        would = order(operator, "group reset", "workers", start="earliest", dry_run=True)
        print(f"a reset would bring {would['lag_after']} jobs, and skip {would['skipped']}")
        order(operator, "group reset", "workers", start="earliest")
        work(events, 2, bank_is_open=True)
        print("noted:", audit.get(timeout=5).data["action"])


def order(operator: Peer, action: str, group: str, **more) -> dict:
    """What the one peer has done, for its one group."""
    (answer,) = operator.operate(action, group, **more).values()
    (row,) = answer["done"]
    return row


def work(events, count: int, *, bank_is_open: bool) -> None:
    for _ in range(count):
        event = events.get(timeout=5)
        if bank_is_open:
            print("paid", event.data, "at attempt", event.attempt)
            events.ack(event)
        else:
            events.nack(event, error="the bank is closed")


if __name__ == "__main__":
    main()
