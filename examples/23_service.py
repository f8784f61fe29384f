"""A service that ends in order when it is told to: nothing that it accepted is lost."""

import multiprocessing
import signal
import sys

from meshmsg import Peer, Stream


def main() -> None:
    spawn = multiprocessing.get_context("spawn")  # a fresh process: see docs/processes.md
    with Peer("client") as client, client.subscribe("orders.**") as events:
        service = spawn.Process(target=serve, args=(client.address,))
        service.start()
        received = [events.get(timeout=30).data]
        service.terminate()  # SIGTERM, as `systemctl stop`, `docker stop` and Kubernetes send it
        while received[-1] != "the last one":
            received += [event.data for event in events.get_many(timeout=10)]
        service.join()
        assert received[:-1] == list(range(len(received) - 1))
        print(f"orders accepted before the signal, all received: {len(received) > 1}")
        print(f"exit status of the service: {service.exitcode}")


def serve(address: str) -> None:
    # The one line.  Without it SIGTERM ends the process at once: what is accepted and has not left
    # it yet is gone, and nobody is told.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Peer("service", streams=[Stream("orders.**")], connect=address) as peer:
        peer.wait_for_subscribers("orders.eu", timeout=30)
        number = 0
        try:
            while True:
                number = peer.publish("orders.eu", number).seq + 1
        finally:
            peer.publish("orders.eu", "the last one")
        # Leaving the block hands over what is left, for up to `tuning.close_timeout_s` seconds.


if __name__ == "__main__":
    main()
