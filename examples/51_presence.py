"""Presence: who is here, who joins, who leaves, who is lost, and what they do."""

import subprocess
import sys

from meshmsg import Peer, Tuning

QUICK = Tuning(ping_interval_s=0.2, peer_timeout_s=1.5)  # silence for 1.5 s: lost


def main() -> None:
    with Peer("office", tuning=QUICK) as office, office.watch_peers() as watch:
        stop = office.on_peers(lambda change: None)  # or a callback, on a thread of its own

        with Peer("shop", connect=office.address, tuning=QUICK) as shop:
            print(show(watch.get(timeout=10)))
            with shop.subscribe("jobs.**", group="workers"):
                shop.publish("orders.eu", 7)
                while "worker" not in (change := watch.get(timeout=10)).peer.roles:
                    print(show(change))
                print(show(change))
            print("here now:", [info.name for info in office.peers()])
        while (change := watch.get(timeout=10)).kind == "changed":
            print(show(change))
        print(show(change))  # it said good-bye

        code = "import sys, time; from meshmsg import Peer\nwith Peer('cart', connect=sys.argv[1]):"
        cart = [sys.executable, "-c", code + " time.sleep(60)", office.address]
        process = subprocess.Popen(cart)
        print(show(watch.get(timeout=30)))
        process.kill()  # no good-bye
        process.wait()
        print(show(watch.get(timeout=30)))
        stop()


def show(change) -> str:
    info = change.peer
    return f"{change.kind} {info.name} {info.roles} streams {info.streams} groups {info.groups}"


if __name__ == "__main__":
    main()
