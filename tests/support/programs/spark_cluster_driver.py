"""A driver whose tasks wait in the middle, until a file says that they may go on.

    python tests/support/programs/spark_cluster_driver.py MASTER PEERS WORK JAVA

Tasks leave a file in the folder WORK when they have begun.  Prints counts and sums in JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import TaskContext

from meshmsg.spark_sink import session
from tests.spark.queries import drain

Batches = Iterator[Any]


def waiting_in_the_middle(work: str) -> Callable[[Batches], Batches]:
    def wait(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 0:
                name = f"{work}/started-{context.partitionId()}-{os.getpid()}"
                open(name, "w").close()
                while not os.path.exists(f"{work}/go"):
                    time.sleep(0.05)
            yield batch

    return wait


def main() -> None:
    master, peers, work, java = sys.argv[1:]
    spark = session(
        master=master,
        config={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": java,
            "spark.sql.shuffle.partitions": 1,
            "spark.log.level": "ERROR",
        },
    )
    reader = spark.readStream.format("meshmsg")
    table = reader.options(peers=peers, partitions=2, payload="n BIGINT").load()
    writer = (
        table.mapInArrow(waiting_in_the_middle(work), table.schema)
        .writeStream.format("parquet")
        .option("path", work + "/out")
        .option("checkpointLocation", work + "/checkpoint")
        .trigger(availableNow=True)
    )
    drain(writer, 500)
    written = spark.read.parquet(work + "/out")
    sums = ("count(distinct epoch, seq)", "min(seq)", "max(seq)", "sum(n)", "max(_error)")
    print(json.dumps(list(written.selectExpr("count(*)", *sums).collect()[0])))


if __name__ == "__main__":
    main()
