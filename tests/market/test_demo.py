"""The demo, short but whole; and what it would call wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from market.bars import Bar
from market.demo.report import tell
from market.demo.run import KILLED, ROLES, Handling, Outcome, Run
from market.demo.spark import Spark
from market.demo.story import checks, problems, story, summary
from market.demo.workers import Worker, WorkerFailed
from market.exchange import FEED, ORDERS, STREAMS, TRADES
from meshmsg import ConfigError, Ledger, LedgerRow
from tests.support import processes
from tests.support.waiting import wait_until

SHORT = ("--seconds", "2", "--stocks", "20", "--rate", "500", "--no-spark")


PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "market_data" / "demo.py"
PATIENCE_S = 120.0


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-u", str(PROGRAM), *arguments]
    return processes.start(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )


def test_demo_reconciles() -> None:
    """One is slow, one comes late, one is killed, one speaks MoldUDP64: all have the same books."""
    demo = start("--plain", *SHORT)
    text, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0, errors + text
    text = re.sub(r"\s+", " ", text)
    assert "the market is closed" in text
    for news in ("bob is killed (SIGKILL)", "carol joins", "bob is back", "the market closes"):
        assert f"s {news}" in text
    assert "bob was killed when" in text
    assert "Every event reached every receiver. None is missing." in text
    table = text.partition("Reconciliation")[2]
    for what in ("published", "delivered", "lost on the wire", "repaired", "deduplicated"):
        assert what in table
    assert re.search(r"✔ declared lost 0 nobody", table)
    assert re.search(r"✔ books equal [0-9a-f]{16} the exchange's own", table)
    assert "✘" not in table
    assert errors == ""


def test_demo_as_json() -> None:
    demo = start("--json", "--seed", "11", *SHORT)
    out, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0, errors
    *rows, last = (json.loads(line) for line in out.splitlines())
    assert {row["stream"] for row in rows} == {f"exchange/{name}" for name in STREAMS}
    found = last["demo"]
    assert found["problems"] == []
    for name in ROLES:
        assert found["handlers"][name]["final"] == found["books"]
        assert found["handlers"][name]["applied"] == found["published"][FEED]
    assert found["handlers"][KILLED]["resumed"] > 0
    assert sum(desk["handled"] for desk in found["desk"].values()) == found["published"][ORDERS]
    assert found["spark"]["left_out"] == "not asked for"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_signal_ends_the_demo_and_its_workers(number: int, status: int) -> None:
    demo = start("--plain", "--seconds", "600", "--rate", "200", "--no-spark")
    assert demo.stdout is not None
    assert any("lost on purpose" in line for line in demo.stdout)
    workers = psutil.Process(demo.pid).children(recursive=True)
    assert workers
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=PATIENCE_S)
    assert (demo.returncode, errors) == (status, "")
    assert not any(worker.is_running() for worker in workers)


def test_a_worker_that_fails_is_named_with_its_last_words() -> None:
    worker = Worker("desk", "market.demo.parts.risk", {"name": "x"})
    try:
        with pytest.raises(WorkerFailed, match=r"desk ended with status 1: KeyError: 'tuning'"):
            wait_until(worker.heard, PATIENCE_S)
    finally:
        worker.end()


# What the demo would call wrong ----------------------------------------------------------------

BAR = Bar(1, 2, 1, 2, 10, 15, 3)
PUBLISHED = {FEED: 100, TRADES: 10, ORDERS: 50}


def handling(name: str, **changed: Any) -> Handling:
    report = {"applied": 100, "dropped": 3, "repaired": 1, "duplicates": 7, "lost": 0}
    report |= {"hashes": {"50": "aa"}, "final": "ff", "resumed": 9 if name == KILLED else 0}
    return Handling(name, 1, "done", None, report | changed)


def outcome(**changed: Any) -> Outcome:
    row = LedgerRow("exchange/feed.**", 1, "x", published=100, delivered=100, filtered=0)
    desk = {"risk-1": {"handled": 30, "exposure": {"A": 5}}}
    desk |= {"risk-2": {"handled": 20, "exposure": {"B": 7}}}
    made: dict[str, Any] = {
        "published": PUBLISHED,
        "drop": 0.1,
        "took_s": 1.0,
        "handlers": [handling(name) for name in ROLES],
        "desk": desk,
        "exposure": {"A": 5, "B": 7},
        "hashes": {50: "aa"},
        "final": "ff",
        "sent": {},
        "replayed": 0,
        "gateway": {"lost": 0},
        "tape": {"trades": 3, "lost": 0, "bars": [["A", 5, *BAR]]},
        "bars": {("A", 5): BAR},
        "spark": Spark(False),
        "ledger": Ledger((row,)),
    }
    return Outcome(**made | changed)


def test_a_good_outcome_has_no_problems() -> None:
    good = outcome()
    assert problems(good) == []
    assert all(check.good is not False for check in checks(good))
    assert len(story(good)) == 5
    assert json.dumps(summary(good, []))


def with_handler(name: str, **changed: Any) -> dict[str, Any]:
    return {"handlers": [handling(n, **(changed if n == name else {})) for n in ROLES]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (with_handler("alice", applied=99), "alice has 99 messages"),
        (with_handler("carol", hashes={"50": "bb"}), "carol: other books after message 50"),
        (with_handler("carol", hashes={}), "checkpoints"),
        (with_handler("dave", final="fe"), "books equal"),
        (with_handler("dave", lost=2), "declared lost"),
        (with_handler("bob", resumed=0), "bob did not go on from its snapshot"),
        ({"gateway": {"lost": 1}}, "declared lost"),
        ({"tape": {"trades": 3, "lost": 1, "bars": [["A", 5, *BAR]]}}, "declared lost"),
        ({"tape": {"trades": 3, "bars": [["A", 6, *BAR]]}}, "bars equal"),
        ({"tape": {}}, "bars equal"),
        ({"desk": {"risk-1": {"handled": 49, "exposure": {"A": 5, "B": 7}}}}, "risk: 49"),
        ({"exposure": {"A": 5, "B": 8}}, "exposure"),
        ({"ledger": Ledger((LedgerRow("s", 1, "x", 100, 99, 0),))}, "ledger"),
        (
            {"ledger": Ledger((LedgerRow("s", 1, "x", 100, 99, 0, {"gone": 1}),))},
            "x has losses: {'gone': 1}",
        ),
    ],
)
def test_what_differs_is_named(changed: dict[str, Any], said: str) -> None:
    assert said in "\n".join(problems(outcome(**changed)))


GOOD_BAR = ["A", 5, 1, 2, 1, 2, 10, 15, 3, 1.5]


def sparks(*bars: list[Any], **changed: Any) -> Spark:
    spark = Spark(False)
    spark.reason = None
    said: dict[str, Any] = {"rows": 160, "bars_now": len(bars), "topics": dict(PUBLISHED)}
    said |= {"missing": 0, "twice": 0, "problems": [], "bars": list(bars)}
    spark.report = said | changed
    spark.compare({("A", 5): BAR}, PUBLISHED)
    return spark


@pytest.mark.parametrize(
    ("spark", "said"),
    [
        (sparks(GOOD_BAR), ""),
        (sparks(GOOD_BAR, topics=PUBLISHED | {FEED: 99}), "99 rows of feed.itch, 100 events"),
        (sparks(GOOD_BAR, topics=PUBLISHED | {FEED: 99, TRADES: 11}), "11 rows of trades.tape"),
        (sparks(GOOD_BAR, twice=1), "1 twice"),
        (sparks(GOOD_BAR, missing=2), "2 missing"),
        (sparks(GOOD_BAR, problems=["a file is not there"]), "a file is not there"),
        (sparks([*GOOD_BAR[:7], 16, 3, 1.6]), "bars in Spark"),
        (sparks([*GOOD_BAR[:9], 1.6]), "bars in Spark"),
        (sparks(), "bars in Spark"),
    ],
)
def test_rows_and_bars_of_spark_are_compared(spark: Spark, said: str) -> None:
    found = "\n".join(problems(outcome(spark=spark)))
    assert (said in found) if said else found == ""


def test_a_spark_that_is_not_done_is_no_success() -> None:
    spark = Spark(False)
    spark.reason, spark.report = None, {"rows": 159, "bars_now": 0}
    spark.compare({("A", 5): BAR}, PUBLISHED)
    found = "\n".join(problems(outcome(spark=spark)))
    assert "rows in Spark: 159" in found
    assert "bars in Spark: 0" in found


def test_what_does_not_come_is_in_the_reconciliation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers: the close is waited for, and what is missing is told line by line."""
    monkeypatch.setattr("market.demo.run.WAIT_S", 0.05)
    run = Run(2.0, 0.1, 7, lambda run: None, stocks=20, rate=500)
    run.exchange = SimpleNamespace(published=PUBLISHED)  # type: ignore[assignment]
    run._peer = SimpleNamespace(  # type: ignore[assignment]
        flush=lambda timeout: None,
        stats=lambda: {"streams": {"feed.**": {}, "trades.**": {}}, "counters": {}},
    )
    run._settle()
    assert run.overdue == [
        f"waited in vain for all {what}" for what in ("books", "orders", "trades")
    ]
    found = problems(outcome(overdue=run.overdue, **with_handler("dave", final=None)))
    assert run.overdue == found[:3]
    assert "books equal" in found[3]


def test_spark_is_asked_for_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("market.demo.spark.why_not", lambda: "it is not here")
    with pytest.raises(ConfigError, match="--spark: it is not here"):
        Spark(True)
    assert Spark(None).reason == "it is not here"


def test_live_picture_can_be_drawn() -> None:
    from rich.console import Console

    from market.demo.view import _picture

    shown = Run(2.0, 0.1, 7, lambda run: None, stocks=20, rate=500)
    shown.simulator.open()
    shown.simulator.until(1.0)
    shown.exchange = SimpleNamespace(published=PUBLISHED)  # type: ignore[assignment]
    shown.handlers["bob"] = handling("bob", hashes={"750": "wrong"})
    shown.simulator.hashes = {750: "right"}
    shown.rates.extend(range(100))
    shown._tell("the market opens")
    shown.spark.reason, shown.spark.report = None, {"rows": 12_345, "bars_now": 67}
    out = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with out.file:
        out.print(_picture(shown))
        text = out.export_text()
    for word in ("AAPL", "bob", "killed and back", "DIFFER", "MoldUDP64", "the market opens"):
        assert word in text
    assert "Spark: 12,345 rows in the table, 67 one-second bars" in text


def test_the_clock_goes_on_past_the_hour() -> None:
    from rich.console import Console

    from market.demo.view import _picture

    shown = Run(3600.0, 0.1, 7, lambda run: None, stocks=20, rate=500)
    shown.at_s = 1923.4
    out = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with out.file:
        out.print(_picture(shown))
    assert "10:02:03.4" in out.export_text()


def test_what_came_of_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tell(outcome(**with_handler("dave", lost=2)), ["something"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "An exchange sent 100 messages" in text
    assert "✔ x 100 100 0 0 - live" in text
    assert "Something is wrong (1)." in text
    assert "✘ declared lost 2 nobody is missing anything" in text
