"""Every example runs by itself, says something, ends well, and is short."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("[0-9][0-9]_*.py"))
LINES_MAX = 80
#: Spark takes half a minute to start, and minutes on a machine with other work.
TIMEOUTS_S = {"36_spark.py": 540, "37_sink.py": 580}

#: What a reader should see; an example that is not here has to print something.
EXPECTED: dict[str, list[str]] = {
    "01_hello.py": ["greetings.world {'text': 'hello'}", "key: en"],
    "02_topics.py": ["orders.**                orders, orders.eu.retail\n"],
    "03_batches.py": ["200,000 events in"],
    "04_no_silent_loss.py": ["10000 events received in order, 0 lost"],
    "05_losses_reported.py": ["reason: overflow", "300000 published ="],
    "06_backpressure.py": [
        "blocked by ['billing/invoices",
        "publishing works again",
        "evicted: you blocked shop/orders.**",
    ],
    "07_late_joiner.py": [
        "start=earliest: 10 events",
        "start=last:3: 3 events, first 'headline 8'",
        "5 events, first 'headline 6'",
        "1 events, first 'headline 10'",
    ],
    "08_threads.py": [f"results.{n} 5000 events, in order" for n in range(8)],
    "09_asyncio.py": ["1000 quotes, total size 499500"],
    "10_typed_events.py": ["order 7 of 100 ACME", "order 8 of 1 ACME", "not an order:"],
    "11_own_codec.py": ["2100 characters in", "without the codec:"],
    "12_mesh_toml.py": ["'orders' with overflow=block", "refused: no stream"],
    "13_publisher_restart.py": ["-- killed, and started again", "a new epoch, counted from 0 on"],
    "14_ledger.py": ["1000       250      750    0         0 reconciles", "990 reconciles"],
    "15_testing.py": ["outage: the last event was found missing", "all tests passed"],
    "16_read_a_frame.py": ["'key': 'c', 'payload': b'\\xc0'"],
    "17_multicast.py": ["lost on the way", "250000 quotes to each of three, 0 lost"],
    "18_one_way_feed.py": [
        "connections of the recorder: 0",
        "20000 trades in order, 0 lost",
        "joined late: [19995, 19996, 19997, 19998, 19999]",
    ],
    "19_two_lines.py": ["both lines up", "line A is cut             0  ", "each loses 5 %"],
    "20_work_group.py": ["60 jobs acknowledged, 6 came again"],
    "21_dead_letters.py": ["tried 3 times", "4 published = 3 done + 1 dead"],
    "22_killed_worker.py": ["second worker has {'invoice': 7} attempt 2", "{'invoice': 8}"],
    "23_service.py": ["all received: True", "exit status of the service: 143"],
    "24_memory_mesh.py": ["seed 2: 51 bills", "cut: the order was billed", "all tests passed"],
    "31_durable_stream.py": ["tuesday: 3 orders are in the log", "number 2 tuesday 2", "lost: 0"],
    "52_security.py": [
        "the desk has 187.2",
        "['pricing/quotes.**']",
        "cut off",
        "refused: one side",
    ],
    "53_sealed_multicast.py": ["times, 0 events lost", "got None", "packets it could open none"],
    "32_committed_cursor.py": ["start 2: ['order 1.3', 'order 1.4', 'order 2.0', 'order 2.1']"],
    "34_spill.py": ["report has all 200,000 ticks in order, 0 lost", "left on disk: 0"],
    "35_durable_group.py": ["20 orders billed", "each order once, none missing"],
    "36_spark.py": [
        "ACME 2000 100.43",
        "in the lake: 9001 rows, 9001 positions",
        "set aside: trades.eu 9000 msgpack: Expected `float",
    ],
    "37_sink.py": [
        "10000 rows in ['quotes.eu', 'quotes.us']",
        "the mean spread is 1.00",
        "1 payload was set aside",
        "ended with status 0",
    ],
    "44_moldudp64.py": ["is session", "20000 messages in order, 0 lost"],
    "40_webhooks_out.py": [
        "verified: orders.eu {'id': 1} attempt 2",
        "dead letters: dead.webhook.former since ",
        "webhook billing: 5 taken = 5 delivered + 0 dead, reconciles: True",
        "webhook former: 5 taken = 0 delivered + 5 dead, reconciles: True",
    ],
    "41_webhooks_in.py": [
        "posted: 204\nposted again: 204\nforged: 401\nfrom yesterday: 401",
        "hooks.invoice.paid {'invoice': 7} as msg_1\nmore: None",
        "'taken': 1, 'duplicates': 1, 'bad_signatures': 1, 'stale': 1",
    ],
    "42_statsd.py": [
        "statsd.aggregate.shop.orders {'count': 100.0}",
        "'median': 49.95",
        "basket {'value': 10.0}",
        "malformed: 0 dropped: 0",
    ],
    "43_nanomsg.py": [
        "in:  nng.sensors.oven {'celsius': 182} is number 2",
        "{'received': 3, 'published': 3}",
        "out: orders.eu {'id': ",
    ],
    "50_discovery.py": ["by zeroconf: 187.2", "second found ['first', 'third']"],
    "51_presence.py": ["joined shop", "left shop", "joined cart", "lost cart"],
    "30_read_a_log.py": ["events 0 to 3 in a frame of", "would begin with event 4"],
}

#: Spark's own worker, whose parent goes first now and then when Spark ends.
SPARK_ENDS = re.compile(
    r"Traceback \(most recent call last\):\n"
    r"(?:  File .*/pyspark/daemon\.py.*\n)+"
    r"BrokenPipeError: .*\n"
)


def test_examples_are_where_they_are_looked_for() -> None:
    assert FILES
    assert set(EXPECTED) <= {path.name for path in FILES}


def marked(path: Path) -> Any:
    """A slow one with a time limit of its own."""
    if path.name not in TIMEOUTS_S:
        return path
    return pytest.param(path, marks=pytest.mark.timeout(600))


@pytest.mark.parametrize("path", [marked(path) for path in FILES], ids=lambda path: path.stem)
def test_example_runs_and_ends_well(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(path)],
        cwd=tmp_path,  # an example may not depend on where it is started
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUTS_S.get(path.name, 60),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip(), "an example prints what it shows"
    for text in EXPECTED.get(path.name, []):
        assert text in done.stdout
    said = SPARK_ENDS.sub("", done.stderr)
    for bad in ("Traceback", "Warning", "Exception ignored"):
        assert bad not in said, said


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_example_is_short_and_starts_with_main(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LINES_MAX
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "the first line says what the example shows"
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    first = next(node for node in tree.body if isinstance(node, definitions))
    assert first.name == "main"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_example_is_listed_in_the_readme(path: Path) -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"]({path.name})" in listed
