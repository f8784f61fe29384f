"""The Spark source through Spark Connect: a client in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.spark.logs import write_log

ROOT = Path(__file__).parents[3]

CLIENT = """
import json, sys
from meshmsg.spark_sink import session
from tests.spark.queries import drain

remote, data, work = sys.argv[1:]
spark = session(remote=remote)
assert "connect" in type(spark).__module__, type(spark)
table = spark.read.format("meshmsg").option("payload", "n BIGINT").load(data)
count, total = table.selectExpr("count(*)", "sum(n)").first()
writer = (
    spark.readStream.format("meshmsg").option("maxEventsPerTrigger", 400).load(data)
    .writeStream.format("parquet").option("path", work + "/out")
    .option("checkpointLocation", work + "/checkpoint").trigger(availableNow=True)
)
drain(writer, 300)
rows = spark.read.parquet(work + "/out").selectExpr("count(*)", "count(distinct seq)").first()
print(json.dumps([count, total, *rows]))
"""


def test_batch_and_stream_through_spark_connect(
    spark: Any, connect_port: int, tmp_path: Path
) -> None:
    write_log(tmp_path / "data", 1000)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            CLIENT,
            f"sc://127.0.0.1:{connect_port}",
            str(tmp_path / "data"),
            str(tmp_path / "work"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [1000, 499_500, 1000, 1000]
