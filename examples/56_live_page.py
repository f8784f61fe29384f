"""The live page of a peer, and what it is sent: the whole mesh, once a second."""

import json
import time
import urllib.request

from meshmsg import Peer, Stream


def main() -> None:
    with (
        # A fixed port in earnest, to open in a browser: monitor="127.0.0.1:9401".
        Peer("shop", streams=Stream("orders.**"), monitor="127.0.0.1:0") as shop,
        Peer("office", connect=shop.address) as office,
        office.subscribe("orders.**", name="all") as events,
    ):
        host, port = shop.monitor.address
        print(f"open http://{host}:{port}/")
        shop.wait_for_subscribers("orders.eu", timeout=5)
        with urllib.request.urlopen(f"http://{host}:{port}/events", timeout=10) as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                shop.publish("orders.eu", {"at": time.time()})
                events.get(timeout=5)
                view = json.loads(line[6:])["view"]
                if view is not None and view["totals"]["delivered_s"]:
                    break
    print("peers:", [peer["name"] for peer in view["peers"]])
    for flow in view["flows"]:
        print("events go from", flow["publisher"], "to", flow["subscriber"])
    print("problems:", view["problems"])


if __name__ == "__main__":
    main()
