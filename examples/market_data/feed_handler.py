"""A feed handler: rebuilds every book from the feed, and goes on where it was after a crash.

    python examples/market_data/feed_handler.py alice --drop 0.1
    python examples/market_data/feed_handler.py bob --slow 0.0005

Kill it (kill -9) and start it again under the same name: it goes on from its snapshot.
"""

import argparse
import time
from contextlib import nullcontext
from pathlib import Path

from market.follow import follow, packet_figures
from market.handler import Handler
from meshmsg import Peer
from meshmsg.testing import lose_packets


def main() -> None:
    options = arguments()
    folder = Path(options.data or f"./{options.name}-data")
    folder.mkdir(exist_ok=True)
    handler = Handler()
    if handler.load(folder / "books"):
        print(f"{options.name} goes on behind message {handler.applied}")
    with (
        Peer(options.name, connect=options.connect, data_dir=folder) as peer,
        # The first time from the day's beginning, then from where it committed.
        peer.subscribe("feed.**", start="committed", name="books", on_loss="raise") as events,
    ):
        events.wait_for_publishers(timeout=60)
        told = time.monotonic()
        with lose_packets(peer, options.drop, seed=1) if options.drop else nullcontext():
            for count in follow(events, handler, keep=folder / "books"):
                time.sleep(count * options.slow)
                if time.monotonic() - told > 1:
                    told = time.monotonic()
                    print(f"{handler.applied} messages, {len(handler.books.orders)} orders rest")
                if handler.closed:
                    break
        print(f"closed: {handler.applied} messages, books {handler.books.hash()}")
        print("packets:", packet_figures(events))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="its name in the mesh, and of its cursor")
    parser.add_argument("--connect", default="tcp://127.0.0.1:7700")
    parser.add_argument("--data", help="where books and cursor are kept; ./NAME-data")
    parser.add_argument("--drop", type=float, default=0.0, help="part of the packets to lose")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep a message")
    return parser.parse_args()


if __name__ == "__main__":
    main()
