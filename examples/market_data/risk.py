"""One of the risk desk: orders are shared by the group, those of an account come in order.

python examples/market_data/risk.py one
python examples/market_data/risk.py two
"""

import argparse
import time

from market.risk import Risk
from meshmsg import Peer


def main() -> None:
    options = arguments()
    desk = Risk()
    with (
        Peer(f"risk-{options.name}", connect=options.connect) as peer,
        peer.subscribe("orders.**", group="risk", prefetch=512) as events,
    ):
        events.wait_for_publishers(timeout=60)
        heard = told = time.monotonic()
        while time.monotonic() - heard < options.patience:
            orders = events.get_many(512, timeout=0.1)
            for order in orders:
                desk.on_order(order.data)
            events.ack(orders)  # now they do not come again, to nobody
            now = time.monotonic()
            heard = now if orders else heard
            if now - told > 1:
                told = now
                print(f"{desk.handled} orders of {len(desk.exposure)} accounts")
        print(f"{desk.handled} orders handled, {len(desk.over)} accounts over their limit:")
        for account, notional in desk.exposure.most_common(3):
            print(f"  {account} {notional / 10_000:,.0f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--connect", default="tcp://127.0.0.1:7700")
    parser.add_argument("--patience", type=float, default=10, help="ends after so long without")
    return parser.parse_args()


if __name__ == "__main__":
    main()
