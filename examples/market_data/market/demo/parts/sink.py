"""Spark's part in the demo: the sink's table of all events, and one-second bars.

Started as a worker by the demo.  A peer records the exchange's streams over the network, losing
packets as everybody there does; the sink's own query writes them into a table, each event once, and
another query makes bars of the trades.  Both go on while the market is open.  In the end the file
`final` says how much was published, and all of that is read before they stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from json import loads
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.dataset as ds

from market.bars import BARS_SQL, TRADE_SCHEMA
from market.demo.workers import say, stop_asked
from market.exchange import STREAMS
from meshmsg import Peer, Tuning
from meshmsg.spark_sink import session
from meshmsg.spark_sink.sink import SETTINGS, Driver, Output, SinkConfig, check_output
from meshmsg.testing import lose_packets

NAME = "sink"
TRIGGER_S = 2.0
LOOK_S = 0.2
ATTEMPTS = 20
CONFIG = {
    **SETTINGS,
    # It runs for a minute: what only pays later is left out.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def main(settings: Mapping[str, Any]) -> None:
    """Record and write, until the demo says that no more comes; then say what is there."""
    stop = stop_asked()
    final = Path(settings["final"])
    config = sink_of(settings["folder"])
    with (
        Peer(
            NAME,
            connect=settings["connect"],
            discovery="none",
            data_dir=config.log,
            record=config.record(),
            tuning=Tuning(**settings["tuning"]),
        ) as peer,
        lose_packets(peer, settings["drop"], settings["seed"]),
    ):
        spark = session("market", master=config.master, config=CONFIG)
        try:
            with Market(spark, config) as market:
                while not final.exists():
                    say(market.figures())
                    if stop.wait(LOOK_S):
                        return
                wanted = sum(loads(final.read_text(encoding="utf-8")).values())
                while not market.has(wanted):
                    say(market.figures())
                    if stop.wait(LOOK_S):
                        return
                bars = market.all_bars()
            say({**market.figures(), **market.checked(), "bars": bars})
            stop.wait()
        finally:
            spark.stop()


def sink_of(folder: str) -> SinkConfig:
    """The sink: all that the exchange publishes, into one table."""
    events = Output(f"{folder}/lake/events", topics=STREAMS)
    return SinkConfig(
        (events,), trigger=TRIGGER_S, master="local[2]", fsync="interval:100ms", retention="all"
    )


class Market:
    """The sink's query and that of the bars, while in the block."""

    def __init__(self, spark: Any, config: SinkConfig) -> None:
        self._spark = spark
        self._config = config
        self._rows = self._lost = 0
        self._failure: BaseException | None = None
        self._begun = threading.Event()  # its query runs, or never will
        self._driver = Driver(config, self._take)
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._bars: Kept | None = None

    def __enter__(self) -> Market:
        self._thread.start()
        # One after the other: Spark gives all new Python processes the same ten seconds.
        self._begun.wait()
        self._bars = Kept(lambda: bars_of(self._spark, self._config.log, self._config.state))
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._driver.stop()
        self._thread.join()

    def _write(self) -> None:
        try:
            self._driver.run_in(self._spark)
        except BaseException as error:
            self._failure = error
        self._begun.set()

    def _take(self, said: dict[str, Any]) -> None:
        if said["kind"] == "commit":
            self._rows += said["rows"]
            self._lost += said["lost"]
        elif said["kind"] == "ready":
            self._begun.set()

    def figures(self) -> dict[str, Any]:
        """How far it is; raises what ended the sink."""
        if self._failure is not None:
            raise self._failure
        return {"rows": self._rows, "lost": self._lost, "bars_now": self._bars_now()}

    def _bars_now(self) -> int:
        return 0 if self._bars is None else self._bars.groups

    def has(self, events: int) -> bool:
        """Whether so many are in the table, or known to be lost."""
        return self._rows + self._lost >= events

    def all_bars(self) -> list[list[Any]]:
        """Of everything that is recorded."""
        assert self._bars is not None
        self._bars.read_all()
        return [list(row) for row in self._spark.table("bars").collect()]

    def checked(self) -> dict[str, Any]:
        """The table as any reader sees it, and beside the log by position."""
        (output,) = self._config.outputs
        found = check_output(output, self._config.log)
        topics = ds.dataset(output.out, format="parquet").to_table(columns=["topic"])["topic"]
        counts = {str(one["values"]): one["counts"].as_py() for one in pc.value_counts(topics)}
        return {
            "topics": counts,
            "missing": found["missing"],
            "twice": found["duplicates"] + found["out_of_range"],
            "problems": found["problems"],
        }


class Kept:
    """A query that is started again where it failed: its checkpoint knows how far it was.

    On a machine that is busy enough Spark gives its own Python processes up before they have begun.
    """

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._query = start()

    @property
    def groups(self) -> int:
        """How many groups it has made so far."""
        progress = self._query.lastProgress
        states = progress["stateOperators"] if progress is not None else ()
        return sum(int(state["numRowsTotal"]) for state in states)

    def read_all(self) -> None:
        """Until everything that was published is read."""
        for left in reversed(range(ATTEMPTS)):
            try:
                self._query.processAllAvailable()
                return
            except Exception:
                if not left or self._query.exception() is None:
                    raise
                time.sleep(LOOK_S)
                self._query = self._start()

    def stop(self) -> None:
        """No more."""
        self._query.stop()


def bars_of(spark: Any, log: str, state: str) -> Any:
    """One-second bars of each stock, from the trades."""
    trades = spark.readStream.format("meshmsg")
    trades = trades.options(topics="trades.**", payload=TRADE_SCHEMA).load(log)
    trades.createOrReplaceTempView("trades")
    return (
        spark.sql(BARS_SQL)
        .writeStream.queryName("bars")
        .option("checkpointLocation", f"{state}/bars")
        .trigger(processingTime=f"{TRIGGER_S:g} seconds")
        .start(format="memory", outputMode="complete")
    )
