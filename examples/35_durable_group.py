"""A work group on a durable stream: the publisher is killed, and the group goes on where it was."""

import multiprocessing
import socket
import tempfile
import time

from meshmsg import Peer, Stream

processes = multiprocessing.get_context("spawn")
ORDERS = Stream("orders.**", durability="log", groups="billing")


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        address = free_address()
        shop, pipe = run_shop(data_dir, address, 0, 50)
        billed = bill(address, 20)
        print(f"{len(billed)} orders billed, and all workers go home")
        time.sleep(0.5)  # what was acknowledged is on the disk within moments
        shop.kill()  # SIGKILL, with 30 orders left
        shop.join()
        print("the shop was killed")

        shop, pipe = run_shop(data_dir, address, 50, 60)
        rest = bill(address, 40)
        print(f"{len(rest)} more billed: those of before the kill first, then the new ones")
        assert sorted(billed + rest) == list(range(60))
        print("each order once, none missing")
        pipe.close()
        shop.kill()
        shop.join()


def bill(address: str, count: int) -> list[int]:
    """A worker that handles so many orders and leaves."""
    done = []
    with (
        Peer("clerk", connect=address) as peer,
        peer.subscribe("orders.**", group="billing", prefetch=8) as events,
    ):
        while len(done) < count:
            with events.get(timeout=10) as event:
                done.append(event.data)
    return done


def run_shop(data_dir: str, address: str, first: int, stop: int):
    """The shop in a process of its own."""
    ours, theirs = processes.Pipe()
    process = processes.Process(target=shop, args=(data_dir, address, first, stop, theirs))
    process.start()
    print(f"the shop has published {ours.recv()} orders")
    return process, ours


def shop(data_dir: str, address: str, first: int, stop: int, pipe) -> None:
    with Peer("shop", streams=[ORDERS], data_dir=data_dir, bind=address) as peer:
        for n in range(first, stop):
            peer.publish("orders.eu", n, key=f"customer-{n % 5}")
        pipe.send(stop - first)
        pipe.poll(None)  # until it is killed


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


if __name__ == "__main__":
    main()
