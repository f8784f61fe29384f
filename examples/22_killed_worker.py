"""A worker is killed in the middle of its job: another one gets it, and says that it is again."""

import multiprocessing
import time

from meshmsg import Peer, Stream

processes = multiprocessing.get_context("spawn")


def main() -> None:
    with (
        Peer("shop", streams=[Stream("jobs.**", groups="workers")]) as shop,
        Peer("spare", connect=shop.address) as spare,
    ):
        shop.publish("jobs.pay", {"invoice": 7}, key="ACME")
        shop.publish("jobs.pay", {"invoice": 8}, key="ACME")
        ours, theirs = processes.Pipe()
        victim = processes.Process(target=stuck, args=(shop.address, theirs), daemon=True)
        victim.start()
        print("first worker has", ours.recv())

        with spare.subscribe("jobs.**", group="workers") as events:
            shop.wait_for_subscribers("jobs.pay", count=2, timeout=10)
            victim.kill()  # SIGKILL: no chance to say good-bye
            killed = time.monotonic()
            for _ in range(2):
                event = events.get(timeout=10)
                print("second worker has", event.data, "attempt", event.attempt)
                if event.attempt > 1:
                    assert time.monotonic() - killed < 5
                    print("noticed within 5 s")
                events.ack(event)
            shop.flush(timeout=5)
        victim.join()


def stuck(address: str, pipe) -> None:
    """The other process: takes a job and never finishes it."""
    with (
        Peer("victim", connect=address) as peer,
        peer.subscribe("jobs.**", group="workers") as events,
    ):
        pipe.send(events.get(timeout=10).data)
        time.sleep(600)


if __name__ == "__main__":
    main()
