"""One-second bars and VWAP by Spark, with Structured Streaming, while the market is open.

    python examples/market_data/spark_bars.py --stock AAPL

Every event as a row of a table, each once, is a command; and another one checks it:

    meshmsg sink --connect tcp://127.0.0.1:7700 --out ./lake/market
    meshmsg sink --out ./lake/market --check
"""

import argparse
import time
from functools import partial

from market.bars import BARS_SQL, TRADE_SCHEMA
from meshmsg.spark_sink import session


def main() -> None:
    options = arguments()
    config = {"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 2}  # few rows: few parts
    spark = session("bars", master="local[2]", config=config)
    query = (
        bars_of(spark, options.connect)
        .writeStream.outputMode("update")  # in each batch the bars that are new or have grown
        .foreachBatch(partial(show, options.stock))
        .trigger(processingTime="1 second")
        .start()
    )
    heard = time.monotonic()
    while time.monotonic() - heard < options.patience:
        time.sleep(0.5)
        if query.exception() is not None:
            raise query.exception()
        if query.status["isDataAvailable"]:  # a batch is being worked on
            heard = time.monotonic()
    query.stop()
    spark.stop()


def bars_of(spark, peers: str):
    """The trades of the exchange, asked of it over the network, as bars by stock and second."""
    trades = spark.readStream.format("meshmsg").options(
        peers=peers, topics="trades.**", payload=TRADE_SCHEMA
    )
    trades.load().createOrReplaceTempView("trades")
    return spark.sql(BARS_SQL)


def show(stock: str, bars, batch: int) -> None:
    for bar in bars.where(bars.stock == stock).orderBy("second").collect():
        prices = "  ".join(f"{price / 10_000:8.2f}" for price in bar[2:6])
        print(f"{stock} {bar.second}  {prices}  {bar.volume:6}  VWAP {bar.vwap / 10_000:8.4f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connect", default="tcp://127.0.0.1:7700")
    parser.add_argument("--stock", default="AAPL")
    parser.add_argument("--patience", type=float, default=30, help="ends after so long without")
    return parser.parse_args()


if __name__ == "__main__":
    main()
