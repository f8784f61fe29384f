"""Spark's part in `meshmsg demo market`: every event a row, and one-second bars, as streams.

Started as a worker by the demo.  One query writes every event of the exchange's logs into a table,
another makes bars of the trades; both go on while the market is open.  In the end the file `final`
is there, and all that was published is read before they stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshmsg.cli._workers import say, stop_asked
from meshmsg.spark_sink.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRADE = "time_ns BIGINT, stock STRING, price BIGINT, shares BIGINT, match BIGINT"
TRIGGER = "2 seconds"
LOOK_S = 0.2
ATTEMPTS = 20
CONFIG = {
    "spark.log.level": "ERROR",
    # It runs for a minute: what only pays later is left out.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
#: In the order of `meshmsg.market.bars.Bar`.
BAR = (
    "min_by(price, match) AS open",
    "max(price) AS high",
    "min(price) AS low",
    "max_by(price, match) AS close",
    "sum(shares) AS volume",
    "sum(price * shares) AS notional",
    "count(*) AS trades",
)


def main(settings: Mapping[str, Any]) -> None:
    """Read, until the demo says that no more comes; then say what is there."""
    stop = stop_asked()
    data, final = settings["data_dir"], Path(settings["final"])
    lake = str(final.with_name("spark"))
    spark = session("market", master="local[2]", config=CONFIG)
    try:
        queries = [Kept(lambda: _rows(spark, data, lake)), Kept(lambda: _bars(spark, data, lake))]
        say({"started": True})
        while not final.exists():
            if stop.is_set():
                return
            time.sleep(LOOK_S)
        for query in queries:
            query.read_all()
        bars = [list(row) for row in spark.table("bars").collect()]
        for query in queries:
            query.stop()
        table = spark.read.parquet(f"{lake}/rows")
        say({"rows": table.select("stream", "epoch", "seq").distinct().count(), "bars": bars})
        stop.wait()
    finally:
        spark.stop()


class Kept:
    """A query that is started again where it failed: its checkpoint knows how far it was.

    On a machine that is busy enough Spark gives its own Python processes up before they have begun.
    """

    def __init__(self, start: Callable[[], StreamingQuery]) -> None:
        self._start = start
        self._query = start()

    def read_all(self) -> None:
        """Until everything that was published is read."""
        from pyspark.errors import StreamingQueryException

        for left in reversed(range(ATTEMPTS)):
            try:
                self._query.processAllAvailable()
                return
            except StreamingQueryException:
                if not left:
                    raise
                self._query = self._start()

    def stop(self) -> None:
        """No more."""
        self._query.stop()


def _read(spark: SparkSession, data: str, **options: str) -> DataFrame:
    return spark.readStream.format("meshmsg").options(**options).load(data)


def _rows(spark: SparkSession, data: str, lake: str) -> StreamingQuery:
    """Every event of every stream."""
    return (
        _read(spark, data)
        .writeStream.option("checkpointLocation", f"{lake}/checkpoint")
        .trigger(processingTime=TRIGGER)
        .start(f"{lake}/rows", format="parquet")
    )


def _bars(spark: SparkSession, data: str, lake: str) -> StreamingQuery:
    """One-second bars of each stock, from the trades."""
    from pyspark.sql.functions import expr

    bars = (
        _read(spark, data, topics="trades.**", payload=TRADE)
        .groupBy("stock", expr("time_ns div 1000000000 AS second"))
        .agg(*(expr(text) for text in BAR))
    )
    return (
        bars.writeStream.queryName("bars")
        .option("checkpointLocation", f"{lake}/bars")
        .trigger(processingTime=TRIGGER)
        .start(format="memory", outputMode="complete")
    )
