"""A feed handler that speaks MoldUDP64 and ITCH 5.0, and knows nothing of meshmsg.

    meshmsg moldudp send 'feed.**' --connect tcp://127.0.0.1:7700 \\
        --line 239.255.7.9:30721 --line 239.255.7.10:30723 --serve 127.0.0.1:30729
    python examples/market_data/mold_handler.py --drop 0.1
"""

import argparse
import random
import time

from market.follow import follow_mold
from market.handler import Handler
from meshmsg.moldudp import MoldListener

LINES = ["239.255.7.9:30721", "239.255.7.10:30723"]


def main() -> None:
    options = arguments()
    handler = Handler()
    rng = random.Random(1)
    with MoldListener(options.line or LINES, server=options.server) as listener:
        listener.fault = lambda packet: rng.random() < options.drop
        told = time.monotonic()
        for _ in follow_mold(listener, handler):
            if time.monotonic() - told > 1:
                told = time.monotonic()
                print(f"{handler.applied} messages, {len(handler.books.orders)} orders rest")
            if handler.closed:
                break
        print(f"closed: {handler.applied} messages, books {handler.books.hash()}")
        print("packets:", listener.stats())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--line", action="append", help="group:port; twice for A and B")
    parser.add_argument("--server", default="127.0.0.1:30729", help="the re-request server")
    parser.add_argument("--drop", type=float, default=0.0, help="part of the packets to lose")
    return parser.parse_args()


if __name__ == "__main__":
    main()
