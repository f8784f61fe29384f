"""The Spark source through Spark Connect: a client in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.spark.logs import write_log
from tests.support import processes

ROOT = Path(__file__).parents[3]


def test_batch_and_stream_through_spark_connect(
    spark: Any, connect_port: int, tmp_path: Path
) -> None:
    write_log(tmp_path / "data", 1000)
    done = subprocess.run(
        processes.program(
            "spark_connect_client",
            f"sc://127.0.0.1:{connect_port}",
            tmp_path / "data",
            tmp_path / "work",
            options=("-W", "ignore"),
        ),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [1000, 499_500, 1000, 1000]
