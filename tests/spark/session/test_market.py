"""What the sink and Spark make of the demo's market: each event a row, and the exchange's bars."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

from market.bars import bars_from, different_bars
from market.demo.parts import sink as market
from market.exchange import Exchange, Lines, market_streams
from market.simulator import Simulator
from meshmsg import Peer
from meshmsg.testing import lose_packets

EXAMPLE = Path(__file__).parents[3] / "examples" / "market_data" / "spark_bars.py"
LIMIT_S = 300.0


@pytest.mark.timeout(600)
def test_rows_and_bars_are_those_of_the_exchange(spark: Any, tmp_path: Path) -> None:
    lines = Lines("239.255.7.91:30791", "239.255.7.92:30793")
    config = market.sink_of(str(tmp_path))
    with Peer(
        "exchange", streams=market_streams(lines), data_dir=str(tmp_path / "exchange")
    ) as peer:
        exchange = Exchange(peer, Simulator(10, 500, 7))
        exchange.open()
        exchange.until(3.0)
        with (
            Peer(
                "sink",
                connect=peer.address,
                discovery="none",
                data_dir=config.log,
                record=config.record(),
            ) as sink,
            lose_packets(sink, 0.1, 7) as path,
            market.Market(spark, config) as running,
        ):
            exchange.until(4.0)  # while the queries run
            exchange.close()
            wait_for(running, sum(exchange.published.values()))
            rows = running.all_bars()
            check_example(spark, peer.address, rows)
        assert path.dropped > 0
        assert running.checked() == {
            "topics": dict(exchange.published),
            "missing": 0,
            "twice": 0,
            "problems": [],
        }
        found = bars_from(row[:-1] for row in rows)
        assert different_bars(exchange.bars, found) == []
        assert len(found) > 10
        assert all(row[-1] == found[row[0], row[1]].vwap for row in rows)
        peer.close(timeout=0)  # nobody of the risk desk will come


def wait_for(running: market.Market, events: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not running.has(events):
        assert time.monotonic() < deadline, running.figures()
        time.sleep(0.1)


def check_example(spark: Any, address: str, rows: list[list[Any]]) -> None:
    """The program for a terminal of its own makes the same bars, asked of the exchange."""
    spec = importlib.util.spec_from_file_location("spark_bars", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    query = (
        module.bars_of(spark, address)
        .writeStream.queryName("bars_of_the_example")
        .trigger(availableNow=True)
        .start(format="memory", outputMode="complete")
    )
    query.awaitTermination()
    made = [list(row) for row in spark.table("bars_of_the_example").collect()]
    assert sorted(made) == sorted(rows)
