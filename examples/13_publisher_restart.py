"""A publisher is killed and started again; its subscriber goes on, in a new epoch."""

import multiprocessing
import time

from meshmsg import Peer

processes = multiprocessing.get_context("spawn")


def main() -> None:
    first, address = start_publisher("tcp://127.0.0.1:*")
    with Peer("watcher", connect=address) as watcher, watcher.subscribe("ticks") as events:
        old = read(events, 3)
        first.kill()  # SIGKILL: no chance to say good-bye
        first.join()
        print("-- killed, and started again on the same port --")
        second, _ = start_publisher(address)
        while (event := events.get(timeout=10)).position.epoch == old.position.epoch:
            old = event  # what was already here when the publisher died
        print("epoch", event.position.epoch, "tick", event.data, "pid", event.key)
        read(events, 2)
        print("a new epoch, counted from", event.seq, "on; reported lost:", events.lost)
        assert event.position.epoch > old.position.epoch
        assert event.seq == 0
    second.kill()
    second.join()


def read(events, count: int):
    for _ in range(count):
        event = events.get(timeout=10)
        print("epoch", event.position.epoch, "tick", event.data, "pid", event.key)
    return event


def start_publisher(address: str):
    """Start the other process; returns it, and the address that it listens on."""
    ours, theirs = processes.Pipe()
    process = processes.Process(target=publisher, args=(address, theirs), daemon=True)
    process.start()
    theirs.close()
    with ours:
        return process, ours.recv()


def publisher(address: str, pipe) -> None:
    """The other process: a tick every 10 ms, until it is killed."""
    with Peer("ticker", bind=address) as peer:
        pipe.send(peer.address)
        pid = str(multiprocessing.current_process().pid)
        tick = 0
        while True:
            peer.publish("ticks", tick, key=pid)
            tick += 1
            time.sleep(0.01)


if __name__ == "__main__":
    main()
