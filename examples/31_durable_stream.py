"""A durable stream: the publisher is killed, and a consumer that was never there misses nothing."""

import multiprocessing
import tempfile

from meshmsg import Peer, Stream

processes = multiprocessing.get_context("spawn")
ORDERS = Stream("orders.**", durability="log", fsync="always", retention="7d,10GB")


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        for day in ("monday", "tuesday"):
            run_and_kill(data_dir, day)
        with (
            Peer("shop", streams=[ORDERS], data_dir=data_dir) as shop,
            Peer("audit", connect=shop.address) as audit,
            audit.subscribe("orders.**", start="earliest") as events,
        ):
            print("-- the audit comes late: first what was, then what is --")
            shop.publish("orders.eu", "wednesday 0")
            while True:
                event = events.get(timeout=10)
                print("epoch", event.position.epoch, "number", event.seq, event.data)
                if event.data == "wednesday 0":
                    break
            print("reported lost:", events.lost)


def run_and_kill(data_dir: str, day: str) -> None:
    """A publisher in a process of its own, killed as soon as `publish` has returned."""
    ours, theirs = processes.Pipe()
    process = processes.Process(target=publisher, args=(data_dir, day, theirs))
    process.start()
    print(f"{day}: {ours.recv()} orders are in the log; killed, with nobody to hear of them")
    process.kill()
    process.join()


def publisher(data_dir: str, day: str, pipe) -> None:
    with Peer("shop", streams=[ORDERS], data_dir=data_dir) as shop:
        for n in range(3):
            shop.publish("orders.eu", f"{day} {n}")
        pipe.send(3)
        pipe.poll(None)  # until it is killed


if __name__ == "__main__":
    main()
