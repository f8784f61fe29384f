"""What cannot be handled ends on `dead.<group>`, with its history, and can be sent again."""

from meshmsg import Peer, Stream


def main() -> None:
    with (
        Peer("shop", streams=[Stream("jobs.**")]) as shop,
        Peer("worker", connect=shop.address) as worker,
        worker.subscribe("jobs.**", group="workers", max_attempts=3) as events,
        worker.subscribe("dead.workers", start="earliest") as dead,
    ):
        shop.wait_for_subscribers("jobs.parse", timeout=5)
        shop.publish("jobs.parse", "12")
        shop.publish("jobs.parse", "twelve")  # poison: no worker can parse it
        shop.publish("jobs.parse", "13")

        letter = None
        while letter is None:
            event = events.get(timeout=0.1)
            if event is not None:
                handle(events, event)
            letter = dead.get(timeout=0)
        history = letter.headers
        print("dead letter:", letter.data, "from", history["dead.topic"])
        print("tried", history["dead.attempts"], "times; the last error:", history["dead.error"])
        print("by", sorted({name.partition("/")[0] for name in history["dead.members"]}))

        # Mended, it goes back to where it came from.
        shop.publish(history["dead.topic"], "12")
        handle(events, events.get(timeout=5))
        shop.flush(timeout=5)
        for row in shop.ledger().rows:
            if row.subscription == "group workers":
                print(f"{row.published} published = {row.delivered} done + {row.dead} dead")


def handle(events, event) -> None:
    try:
        number = int(event.data)
    except ValueError as error:
        print("attempt", event.attempt, "failed:", error)
        events.nack(event, delay="10ms", error=str(error))
    else:
        print("parsed", number)
        events.ack(event)


if __name__ == "__main__":
    main()
