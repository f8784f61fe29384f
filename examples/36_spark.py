"""From a publisher to a SQL query: Spark reads a mesh, as a table and as a stream."""

import tempfile
from pathlib import Path

from meshmsg import Peer, Stream
from meshmsg.spark_sink import session

TRADES = Stream("trades.**", durability="log")
COLUMNS = "symbol STRING, price DOUBLE, size INT"


def main() -> None:
    spark = session(master="local[2]", config={"spark.log.level": "ERROR"})
    with tempfile.TemporaryDirectory() as folder:
        data, lake = f"{folder}/data", f"{folder}/lake"
        with Peer("exchange", streams=[TRADES], data_dir=data) as peer:
            publish(peer, 0, 6000)

            # 1. Straight from the peer over the network: an ordinary table.
            trades = spark.read.format("meshmsg").options(
                topics="trades.**", peers=peer.address, payload=COLUMNS
            )
            trades.load().createOrReplaceTempView("trades")
            print("-- average price by symbol, asked of the peer --")
            for row in spark.sql(
                "SELECT symbol, count(*) AS n, round(avg(price), 2) AS price "
                "FROM trades GROUP BY symbol ORDER BY symbol"
            ).collect():
                print(row.symbol, row.n, row.price)

            # 2. A stream into a lake, from the log's files; stopped, and started again later.
            drain(spark, data, lake)
            publish(peer, 6000, 9000)
            drain(spark, data, lake)

            # 3. What is not as declared is set aside, and does not stop anything.
            peer.publish("trades.eu", {"symbol": "ACME", "price": "a lot", "size": 1})
            drain(spark, data, lake)
        table = spark.read.parquet(lake)
        counts = table.selectExpr("count(*)", "count(DISTINCT epoch, seq)").first()
        print(f"-- in the lake: {counts[0]} rows, {counts[1]} positions --")
        bad = table.where("_error IS NOT NULL").first()
        print("set aside:", bad.topic, bad.seq, bad["_error"])
    spark.stop()


def publish(peer: Peer, first: int, stop: int) -> None:
    """Trades of three symbols."""
    symbols = ("ACME", "BOLT", "CORE")
    events = [
        {"symbol": symbols[n % 3], "price": 100 + n % 3 + n % 7 / 7, "size": n % 50}
        for n in range(first, stop)
    ]
    peer.publish_many("trades.eu", events)
    peer.flush(timeout=10)


def drain(spark, data: str, lake: str) -> None:
    """All that came since the last time, exactly once; the checkpoint knows how far that was."""
    query = (
        spark.readStream.format("meshmsg")
        .options(topics="trades.**", payload=COLUMNS, maxEventsPerTrigger=100_000)
        .load(data)
        .writeStream.option("checkpointLocation", f"{Path(lake).parent}/checkpoint")
        .trigger(availableNow=True)
        .start(lake, format="parquet")
    )
    query.awaitTermination()
    print("written:", sum(progress["numInputRows"] for progress in query.recentProgress), "rows")


if __name__ == "__main__":
    main()
