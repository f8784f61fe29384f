"""A work group: each job goes to one of the workers, and comes again until it is done."""

import threading

from meshmsg import Peer, Stream

JOBS = 60


def main() -> None:
    with (
        Peer("shop", streams=[Stream("jobs.**")]) as shop,
        Peer("anna", connect=shop.address) as anna,
        Peer("bert", connect=shop.address) as bert,
        anna.subscribe("jobs.**", group="workers") as one,
        bert.subscribe("jobs.**", group="workers") as two,
    ):
        shop.wait_for_subscribers("jobs.resize", count=2, timeout=5)
        workers = [threading.Thread(target=work, args=pair) for pair in ((anna, one), (bert, two))]
        for worker in workers:
            worker.start()
        for n in range(JOBS):
            # The pictures of an album are handled one after the other, different albums at once.
            shop.publish("jobs.resize", {"picture": n}, key=f"album-{n % 20}")
        shop.flush(timeout=10)  # returns when every job is acknowledged
        for worker in workers:
            worker.join()
        group = shop.stats()["streams"]["jobs.**"]["groups"][0]
        print(f"{group['acked']} jobs acknowledged, {group['redelivered']} came again")


def work(peer, events) -> None:
    """A worker: takes jobs until none has come for a while."""
    done, failed = 0, 0
    while (event := events.get(timeout=1)) is not None:
        try:
            with event:  # acknowledged at the end, given back if this raises
                resize(event.data["picture"], event.attempt)
                done += 1
        except OSError:
            failed += 1
    print(f"{peer.name} did {done} jobs and failed at {failed}")


def resize(picture: int, attempt: int) -> None:
    """Every tenth picture does not work the first time."""
    if picture % 10 == 0 and attempt == 1:
        raise OSError("disk full")


if __name__ == "__main__":
    main()
