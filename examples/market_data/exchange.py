"""The exchange: trades by a seed, and publishes its books, trades and orders.

    python examples/market_data/exchange.py --seconds 60

Feed, tape and orders are durable: who comes late reads the day from its beginning.
"""

import argparse
import time

from market.exchange import Exchange, Lines, market_streams
from market.simulator import Simulator
from meshmsg import Peer, WaitTimeout

STEP_S = 0.02


def main() -> None:
    options = arguments()
    streams = market_streams(Lines(f"{options.net}.7:30701", f"{options.net}.8:30703"))
    with Peer("exchange", streams=streams, bind=options.bind, data_dir=options.data) as peer:
        print("the exchange is at", peer.address)
        simulator = Simulator(options.stocks, options.rate, options.seed)
        exchange = Exchange(peer, simulator)
        exchange.open()
        began = told = time.monotonic()
        for step in range(1, int(options.seconds / STEP_S) + 1):
            exchange.until(step * STEP_S)
            if time.monotonic() - told > 1:
                told = time.monotonic()
                print(f"{step * STEP_S:6.1f} s  {dict(exchange.published)}")
            time.sleep(max(0.0, began + step * STEP_S - time.monotonic()))
        exchange.close()
        print(f"closed: {simulator.messages} messages, books {simulator.books.hash()}")
        print(f"{len(exchange.bars)} one-second bars; the busiest:")
        for (stock, second), bar in sorted(exchange.bars.items(), key=lambda b: -b[1].trades)[:3]:
            print(f"  {stock} at {second}: {bar.trades} trades, VWAP {bar.vwap / 10_000:.4f}")
        time.sleep(options.stay)  # who comes now still gets all of the day
        try:
            peer.flush(timeout=1)
        except WaitTimeout as behind:  # the group is kept from the start on, members or not
            print("not everybody has all of it:", behind)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bind", default="tcp://127.0.0.1:7700")
    parser.add_argument("--net", default="239.255.7", help="where lines A and B are")
    parser.add_argument("--data", default="./exchange-data", help="where the logs are kept")
    parser.add_argument("--stocks", type=int, default=300)
    parser.add_argument("--rate", type=float, default=4000, help="what happens in a second")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--stay", type=float, default=5, help="seconds, after the close")
    return parser.parse_args()


if __name__ == "__main__":
    main()
