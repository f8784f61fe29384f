"""`meshmsg demo market` and `meshmsg moldudp`, short but whole."""

from __future__ import annotations

import json
import random
import re
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from meshmsg.cli._market_run import KILLED, ROLES, Handling, Outcome, Run
from meshmsg.cli._market_spark import Spark
from meshmsg.cli._market_story import checks, problems, story, summary
from meshmsg.market.bars import Bar
from meshmsg.market.exchange import FEED, ORDERS, STREAMS, TRADES
from meshmsg.recovery.stream.ledger import Ledger, LedgerRow

SHORT = ("--seconds", "2", "--stocks", "20", "--rate", "500", "--no-spark")


def test_demo_market_reconciles(start: Any) -> None:
    """One is slow, one comes late, one is killed, one speaks MoldUDP64: all have the same books."""
    demo = start("demo", "market", "--plain", *SHORT)
    assert demo.end() == 0, demo.errors() + "".join(demo.out)
    text = re.sub(r"\s+", " ", "".join(demo.out))
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
    assert demo.errors() == ""


def test_demo_market_as_json(start: Any) -> None:
    demo = start("demo", "market", "--json", "--seed", "11", *SHORT)
    assert demo.end() == 0, demo.errors()
    *rows, last = (json.loads(line) for line in demo.out)
    assert {row["stream"] for row in rows} == {f"exchange/{name}" for name in STREAMS}
    found = last["demo"]
    assert found["problems"] == []
    for name in ROLES:
        assert found["handlers"][name]["final"] == found["books"]
        assert found["handlers"][name]["applied"] == found["published"][FEED]
    assert found["handlers"][KILLED]["resumed"] > 0
    assert sum(desk["handled"] for desk in found["desk"].values()) == found["published"][ORDERS]
    assert found["spark"]["left_out"] == "not asked for"


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
    monkeypatch.setattr("meshmsg.cli._market_run.WAIT_S", 0.05)
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


def test_spark_is_asked_for_where_it_is_not(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshmsg.cli._market_spark.why_not", lambda: "it is not here")
    result = run("demo", "market", "--spark")
    assert result.exit_code == 2
    assert "--spark: it is not here" in result.stderr


def test_live_picture_can_be_drawn() -> None:
    from rich.console import Console

    from meshmsg.cli._market_view import _picture

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

    from meshmsg.cli._market_view import _picture

    shown = Run(3600.0, 0.1, 7, lambda run: None, stocks=20, rate=500)
    shown.at_s = 1923.4
    out = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with out.file:
        out.print(_picture(shown))
    assert "10:02:03.4" in out.export_text()


# moldudp ---------------------------------------------------------------------------------------


def line() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"239.255.{random.randint(1, 254)}.81:{probe.getsockname()[1]}"


def test_moldudp_there_and_back(start: Any) -> None:
    where = line()
    pub = start(
        "pub", "feed.a", "hello {n}", "-n", "50", "-b", "tcp://127.0.0.1:*", "--wait-timeout", "60s"
    )
    send = start(
        "moldudp", "send", "**", "-l", where, "-c", pub.address(), "-n", "50", "--linger", "10m"
    )
    server = send.wait_for_line(r"requests to (\S+)", err=True)[1]
    recv = start(
        "moldudp", "recv", "back.feed", "-l", where, "--server", server, "-b", "tcp://127.0.0.1:*",
        "--wait", "1",
    )  # fmt: skip
    sub = start("sub", "back.**", "-c", recv.address(), "-n", "50", "--json")
    assert pub.end() == 0, pub.errors()
    assert sub.end() == 0, sub.errors()
    found = sub.objects()
    assert [int(one["key"]) for one in found] == list(range(1, 51))
    assert recv.end() == 0, recv.errors()
    send.interrupt()
    assert send.end() == 130, send.errors()
    assert "published 50 messages, none lost" in recv.errors()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "**", "-l", "nowhere", "-c", "tcp://127.0.0.1:1"), "lines"),
        (("send", "**", "-l", "239.255.7.7:30001"), "--connect"),
        (("recv", "x", "-l", "10.0.0.1:5", "-b", "tcp://127.0.0.1:*"), "lines"),
        (("recv", "x", "-l", "239.255.7.7:5", "-b", "ipc:///x", "--server", "x"), "server"),
    ],
)
def test_moldudp_wrong_usage(run: Any, arguments: tuple[str, ...], said: str) -> None:
    result = run("moldudp", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
