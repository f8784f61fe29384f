"""A client of Spark Connect that reads a log, as a batch and as a stream.

    python tests/support/programs/spark_connect_client.py REMOTE DATA_DIR WORK

Prints counts and sums in JSON.
"""

from __future__ import annotations

import json
import sys

from meshmsg.spark_sink import session
from tests.spark.queries import drain


def main() -> None:
    remote, data, work = sys.argv[1:]
    spark = session(remote=remote)
    assert "connect" in type(spark).__module__, type(spark)
    table = spark.read.format("meshmsg").option("payload", "n BIGINT").load(data)
    read = table.selectExpr("count(*)", "sum(n)").collect()[0]
    stream = spark.readStream.format("meshmsg").option("maxEventsPerTrigger", 400).load(data)
    writer = (
        stream.writeStream.format("parquet")
        .option("path", work + "/out")
        .option("checkpointLocation", work + "/checkpoint")
        .trigger(availableNow=True)
    )
    drain(writer, 300)
    written = spark.read.parquet(work + "/out")
    rows = written.selectExpr("count(*)", "count(distinct seq)").collect()[0]
    print(json.dumps([*read, *rows]))


if __name__ == "__main__":
    main()
