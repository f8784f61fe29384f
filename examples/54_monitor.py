"""A peer's own endpoint: metrics for Prometheus, and `/ready` for an orchestrator."""

import json
import time
import urllib.error
import urllib.request

from meshmsg import Monitor, Peer, PublishTimeout, Stream


def main() -> None:
    orders = Stream("orders.**", overflow="block", window_bytes="64KiB")
    # A fixed port in earnest: Peer("shop", monitor="127.0.0.1:9401").
    limits = Monitor("127.0.0.1:0", blocked_max="500ms")
    with (
        Peer("shop", streams=orders, monitor=limits) as shop,
        Peer("office", connect=shop.address) as office,
        office.subscribe("orders.**", name="all") as events,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=5)
        for n in range(100):
            shop.publish("orders.eu", {"id": n})
        print("ready:", ask(shop, "/ready"))
        print(metric(shop, "meshmsg_stream_events_total"))

        # Nobody reads: the stream is blocked, and after a while the peer is not ready.
        try:
            while True:
                shop.publish("orders.eu", b"x" * 10_000, timeout=1.0)
        except PublishTimeout as error:
            print("blocked:", error)
        print("ready:", ask(shop, "/ready"))

        # Somebody reads again.
        while events.get(timeout=0.2) is not None:
            pass
        while (found := ask(shop, "/ready")) != (200, []):
            time.sleep(0.1)
        print("ready:", found)


def ask(peer: Peer, path: str) -> tuple[int, list[dict[str, str]]]:
    """Status and body of a JSON answer."""
    try:
        with urllib.request.urlopen(url(peer, path), timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def metric(peer: Peer, name: str) -> str:
    """The lines of one metric, as Prometheus reads them."""
    with urllib.request.urlopen(url(peer, "/metrics"), timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return "\n".join(line for line in lines if line.startswith(name))


def url(peer: Peer, path: str) -> str:
    host, port = peer.monitor.address
    return f"http://{host}:{port}{path}"


if __name__ == "__main__":
    main()
