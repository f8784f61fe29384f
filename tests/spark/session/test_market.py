"""What Spark makes of the demo's market: every event a row, and the same bars as the exchange."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer
from meshmsg.market.bars import bars_from, different_bars
from meshmsg.market.exchange import Exchange, Lines, market_streams
from meshmsg.market.simulator import Simulator
from meshmsg.spark_sink import market


@pytest.mark.timeout(600)
def test_rows_and_bars_are_those_of_the_exchange(spark: Any, tmp_path: Path) -> None:
    lines = Lines("239.255.7.91:30791", "239.255.7.92:30793")
    data = str(tmp_path / "exchange")
    with Peer("exchange", streams=market_streams(lines), data_dir=data) as peer:
        exchange = Exchange(peer, Simulator(10, 500, 7))
        exchange.open()
        exchange.until(3.0)
        lake = str(tmp_path / "spark")
        queries = [
            market.Kept(lambda: market._rows(spark, data, lake)),
            market.Kept(lambda: market._bars(spark, data, lake)),
        ]
        for query in queries:
            query.read_all()
        exchange.until(4.0)  # while the queries run
        exchange.close()
        for query in queries:
            query.read_all()
        found = bars_from([list(row) for row in spark.table("bars").collect()])
        for query in queries:
            query.stop()
        assert different_bars(exchange.bars, found) == []
        assert len(found) > 10
        rows = spark.read.parquet(f"{lake}/rows")
        counts = {row.topic: row["count"] for row in rows.groupBy("topic").count().collect()}
        assert counts == dict(exchange.published)
        peer.close(timeout=0)  # nobody of the risk desk will come
