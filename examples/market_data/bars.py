"""One-second bars from the tape, as they are complete: open, high, low, close, volume, VWAP.

python examples/market_data/bars.py --stock AAPL
"""

import argparse

from market.bars import SECOND_NS, Bars, add_prints
from market.simulator import Print
from meshmsg import Peer


def main() -> None:
    options = arguments()
    bars: Bars = {}
    shown = 0
    with (
        Peer("bars", connect=options.connect) as peer,
        peer.subscribe("trades.**", start="earliest", on_loss="raise") as events,
    ):
        while event := events.get(timeout=options.patience):
            trade = Print(**event.data)
            second = trade.time_ns // SECOND_NS
            if second > shown:  # trades come in order: what was before is complete
                show(bars, options.stock, shown)
                shown = second
            add_prints(bars, [trade])
    show(bars, options.stock, shown)
    print(f"{len(bars)} bars from {sum(bar.trades for bar in bars.values())} trades")


def show(bars: Bars, stock: str, second: int) -> None:
    bar = bars.get((stock, second))
    if bar is not None:
        prices = "  ".join(f"{price / 10_000:8.2f}" for price in bar[:4])
        print(f"{stock} {second}  {prices}  {bar.volume:6}  VWAP {bar.vwap / 10_000:8.4f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connect", default="tcp://127.0.0.1:7700")
    parser.add_argument("--stock", default="AAPL")
    parser.add_argument("--patience", type=float, default=10, help="ends after so long without")
    return parser.parse_args()


if __name__ == "__main__":
    main()
