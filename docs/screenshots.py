"""Take the pictures of the live page that docs/web.md shows: a real mesh, a real browser.

    python docs/screenshots.py

Needs Debian's chromium and chromium-driver (`make tools`).  Look at them before they are committed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from meshmsg import EventsLost, Multicast, Peer, PublishTimeout, Stream
from meshmsg.testing import lose_frames
from tests.support.browsing import browser, show
from tests.support.waiting import wait_until

DOCS = Path(__file__).resolve().parent
#: So that plots have something to show.
MINUTES_S = 75.0
SIZES = {
    "web.png": (1280, 940, False),
    "web-dark.png": (1280, 620, True),
    "web-400.png": (400, 760, False),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url = stack.enter_context(mesh(Path(folder)))
        page = stack.enter_context(browser(Path(folder) / "chromium"))
        page.get(url)
        time.sleep(MINUTES_S)
        for name, (width, height, dark) in SIZES.items():
            show(page, width, height, dark=dark)
            time.sleep(2.0)  # for figures of the new size
            page.save_screenshot(str(DOCS / name))


@contextmanager
def mesh(folder: Path) -> Iterator[str]:
    """A shop, its feed and those who read them; yields where the page is."""
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def go(work: Callable[..., None], *arguments: Any) -> None:
        threads.append(threading.Thread(target=work, args=(ended, *arguments)))

    shop_streams = [
        Stream("orders.**", durability="log", retention="1GB", groups=["billing"]),
        Stream("stock.**", overflow="block", window_bytes="64KiB"),
    ]
    feed_streams = [
        Stream("quotes.**", overflow="drop_oldest", buffer_bytes="64KiB"),
        Stream("trades.**", transport=Multicast("239.255.77.24:30926")),
    ]
    with ExitStack() as stack:
        enter = stack.enter_context
        shop = enter(Peer("shop", streams=shop_streams, data_dir=folder, monitor="127.0.0.1:0"))
        feed = enter(Peer("feed", streams=feed_streams, connect=shop.address))
        both = [shop.address, feed.address]
        desks = [enter(Peer(f"desk-{n}", connect=both)) for n in range(1, 6)]
        crew = [enter(Peer(f"billing-{n}", connect=shop.address)) for n in range(1, 4)]
        risk = enter(Peer("risk", connect=both, streams=Stream("limits.**")))
        office = enter(Peer("office", connect=[*both, risk.address]))
        for desk in desks:
            go(read, enter(desk.subscribe("quotes.**", "trades.**", name="screen")))
        go(read, enter(risk.subscribe("trades.**", "orders.**", name="positions")))
        go(read, enter(office.subscribe("orders.**", "limits.**", name="archive")))
        go(read_slowly, enter(office.subscribe("stock.**", name="inventory")))
        for one in crew:
            go(bill, enter(one.subscribe("orders.**", group="billing")))
        go(lose, feed)
        for peer, topic, rate in (
            (shop, "orders.eu", 60),
            (shop, "stock.eu", 40),
            (feed, "quotes.x", 200),
            (feed, "trades.x", 80),
            (risk, "limits.x", 5),
        ):
            go(publish, peer, topic, rate)
        for thread in threads:
            thread.start()
        leaver = enter(Peer("desk-6", connect=shop.address))
        wait_until(lambda: any(one.name == "desk-6" for one in shop.peers()))
        threading.Timer(MINUTES_S / 2, leaver.close).start()
        host, port = shop.monitor.address
        try:
            yield f"http://{host}:{port}/"
        finally:
            ended.set()
            for thread in threads:
                thread.join()


def publish(ended: threading.Event, peer: Peer, topic: str, rate: float) -> None:
    wave = random.Random(topic)
    while not ended.wait(wave.expovariate(rate)):
        with suppress(PublishTimeout):
            peer.publish(topic, {"price": wave.random(), "note": "x" * 80}, timeout=0.0)


def read(ended: threading.Event, events: Any) -> None:
    while not ended.is_set():
        with suppress(EventsLost):
            events.get_many(1_000, timeout=0.2)


def read_slowly(ended: threading.Event, events: Any) -> None:
    """Less than is published: the stream is blocked."""
    while not ended.wait(0.5):
        with suppress(EventsLost):
            events.get(timeout=0.0)


def bill(ended: threading.Event, work: Any) -> None:
    done = 0
    while not ended.is_set():
        order = work.get(timeout=0.2)
        if order is None:
            continue
        done += 1
        (work.nack if done % 40 == 0 else work.ack)(order)
        ended.wait(0.03)


def lose(ended: threading.Event, feed: Peer) -> None:
    """Once, what is sent does not arrive, and is gone before it can be sent again."""
    if not ended.wait(MINUTES_S - 20.0):
        with lose_frames(feed, ratio=0.9, seed=7):
            for _ in range(2_000):
                feed.publish("quotes.y", b"x" * 1_000)


if __name__ == "__main__":
    main()
