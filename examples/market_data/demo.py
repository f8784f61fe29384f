"""All of the market at once, each part a process of its own; at the end everything is compared.

    python examples/market_data/demo.py
    python examples/market_data/demo.py --seconds 60 --stocks 500 --rate 8000 --drop 0.2

Handlers are slow, late and killed, and all lose packets on purpose. The exit status is 1 if
anything differs from the exchange's own record.
"""

import argparse
import json
import signal
import sys

from market.demo import report, story, view
from market.demo.run import Run
from meshmsg import ConfigError, MeshError


def main() -> int:
    options = arguments()
    plain = view.plain_view if options.plain or not sys.stdout.isatty() else view.live_view
    with (view.no_view if options.json else plain)(report.console()) as show:
        run = Run(
            options.seconds,
            options.drop,
            options.seed,
            show,
            stocks=options.stocks,
            rate=options.rate,
            spark=options.spark,
        )
        outcome = run.go()
    wrong = story.problems(outcome)
    if options.json:
        for row in outcome.ledger.rows:
            print(json.dumps(row.as_dict()))
        print(json.dumps(story.summary(outcome, wrong)))
    else:
        report.tell(outcome, wrong)
    for problem in wrong:
        print("demo:", problem, file=sys.stderr)
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--seconds", type=float, default=30, help="how long the market is open, about")
    add("--drop", type=float, default=0.1, help="part of each receiver's packets to lose")
    add("--seed", type=int, default=7, help="what happens in the market, and which packets go")
    add("--stocks", type=int, default=300)
    add("--rate", type=float, default=4000, help="what happens in a second, about")
    spark = "with Spark or without; if not given, with it where it is installed"
    add("--spark", action=argparse.BooleanOptionalAction, help=spark)
    add("--plain", action="store_true", help="lines instead of a live view, as in a log")
    add("--json", action="store_true", help="only the figures, at the end")
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except MeshError as error:
        print("demo:", error, file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)
