"""Log lines as JSON: one object a line, whatever others have said."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from typing import Any

import pytest

from meshmsg import JsonLogFormatter, Loss, Position
from meshmsg._runtime.log_limit import LogLimit


def line(text: str, *values: Any, peer: str = "", **fields: Any) -> dict[str, str]:
    record = logging.LogRecord("meshmsg.peer", logging.WARNING, "x.py", 1, text, values, None)
    record.__dict__.update(fields)
    shown = JsonLogFormatter(peer).format(record)
    assert "\n" not in shown
    found: dict[str, str] = json.loads(shown)
    return found


def test_a_line_has_time_level_logger_and_message() -> None:
    found = line("%d peers", 3)
    assert found.pop("time").endswith("Z")
    assert found == {"level": "warning", "logger": "meshmsg.peer", "message": "3 peers"}


def test_the_peer_is_the_formatters_unless_the_line_names_one() -> None:
    assert line("x", peer="shop")["peer"] == "shop"
    assert line("x", peer="shop", stream="").get("stream") is None
    record = logging.LogRecord("meshmsg", logging.INFO, "x.py", 1, "x", (), None)
    record.peer = "desk"
    assert json.loads(JsonLogFormatter("shop").format(record))["peer"] == "desk"


def test_a_loss_an_event_and_a_text_have_their_position() -> None:
    at = Position("shop/orders.**", 1700000000000000, 41)
    loss = Loss(at.stream, at.epoch, at.seq, 50, "overflow")
    for text, value in (("%s", loss), ("%s is bad", at), ("group g gave up %s after 1", str(at))):
        found = line(text, value)
        assert (found["stream"], found["position"]) == (at.stream, str(at))


def test_a_line_about_a_stream_has_its_name() -> None:
    found = line("%s: gone", "shop/a", stream="shop/a")
    assert (found["stream"], "position" in found) == ("shop/a", False)


def test_what_others_said_never_ends_a_line() -> None:
    evil = 'a\r\n{"level":"info"}\u2028\x1b[2J\ud800"'
    found = line("%s", evil)
    assert found["message"].startswith('a\r\n{"level"')


def test_an_exception_is_part_of_the_object() -> None:
    try:
        raise ValueError("no such order")
    except ValueError:
        found = line("failed", exc_info=sys.exc_info())
    assert found["error"] == "ValueError: no such order"
    assert "Traceback" in found["trace"]


def test_lines_that_others_cause_name_their_stream(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("meshmsg.test")
    with caplog.at_level(logging.WARNING, logger="meshmsg.test"):
        LogLimit(logger, Counter()).warning("%s: evicted", "shop/a", stream="shop/a")
    (record,) = caplog.records
    assert json.loads(JsonLogFormatter().format(record))["stream"] == "shop/a"
