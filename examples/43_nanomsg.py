"""nanomsg and NNG applications meet the mesh: their messages as events, events as messages."""

import json

import pynng  # what such an application uses, unchanged

from meshmsg import Peer, Stream
from meshmsg.nanomsg import NanomsgIn, NanomsgOut

ANY = "tcp://127.0.0.1:0"


def main() -> None:
    with (
        Peer("bridge", streams=[Stream("nng.**")]) as bridge,
        Peer("shop", connect=bridge.address, streams=[Stream("orders.**")]) as shop,
        shop.subscribe("nng.**") as events,
    ):
        bridge.wait_for_subscribers("nng.x", timeout=5)
        take_in(bridge, events)
        send_out(bridge, shop)


def take_in(bridge: Peer, events) -> None:
    """Their push socket, our pull socket: nothing is dropped on the way."""
    with (
        NanomsgIn(bridge, ANY, kind="pull", listen=True, json=True) as inlet,
        pynng.Push0(dial=inlet.url) as push,
    ):
        for n in range(3):
            push.send(b"sensors/oven|" + json.dumps({"celsius": 180 + n}).encode())
        for _ in range(3):
            event = events.get(timeout=5)
            print("in: ", event.topic, event.data, "is number", event.seq)
    print("    ", {name: count for name, count in inlet.stats().items() if count})


def send_out(bridge: Peer, shop: Peer) -> None:
    """Our pub socket, their sub socket: what it misses, it sees by the positions only."""
    with (
        NanomsgOut(bridge, ANY, "orders.**", format="event") as outlet,
        pynng.Sub0(dial=outlet.url, topics=b"orders.eu", recv_timeout=100) as sub,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=5)
        number = 0
        while True:  # a pub socket cannot be asked whether somebody listens yet
            shop.publish("orders.eu", {"id": number})
            number += 1
            try:
                topic, _, payload = sub.recv().partition(b"|")
                break
            except pynng.Timeout:
                pass
        event = json.loads(payload)
        print("out:", topic.decode(), event["data"], "is", event["position"].partition("@")[0])


if __name__ == "__main__":
    main()
