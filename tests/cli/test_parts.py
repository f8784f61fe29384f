"""The parts that verbs are made of: pacing, reading events, showing values."""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from meshmsg import MeshError, Peer, Position, Stream
from meshmsg.cli._guard import note
from meshmsg.cli._items import Form, Item, fill, from_argument, from_lines, parse_headers
from meshmsg.cli._logs import LogLevel, write_logs
from meshmsg.cli._options import seconds
from meshmsg.cli._pacer import CATCH_UP_S, Pacer
from meshmsg.cli._publishing import Audience, Tally, publish_all
from meshmsg.cli._tables import by_reason, console, table, tick
from meshmsg.cli._values import clock_time, iso_time, safe, to_json
from meshmsg.cli.sub import parse_where

# Pacing ----------------------------------------------------------------------------------------


class Clock:
    """Time that passes when somebody sleeps, or is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def turns(pacer: Pacer, clock: Clock, count: int) -> list[float]:
    times = []
    for _ in range(count):
        pacer.wait()
        times.append(clock.now)
    return times


def test_turns_are_evenly_spaced_and_the_first_is_at_once() -> None:
    clock = Clock()
    times = turns(Pacer(10, clock=clock, sleep=clock.sleep), clock, 31)
    assert times[0] == 100.0
    assert times == pytest.approx([100 + n / 10 for n in range(31)])


def test_a_late_sleeper_does_not_make_the_rate_drift() -> None:
    clock = Clock()

    def oversleep(seconds: float) -> None:
        clock.now += seconds + 0.003

    pacer = Pacer(100, clock=clock, sleep=oversleep)
    times = turns(pacer, clock, 1001)
    assert times[-1] == pytest.approx(110, abs=0.01)


def test_after_a_pause_only_a_bounded_part_is_made_up_for() -> None:
    clock = Clock()
    pacer = Pacer(100, clock=clock, sleep=clock.sleep)
    turns(pacer, clock, 10)
    clock.now += 60
    resumed = clock.now
    times = turns(pacer, clock, 100)
    assert sum(t == resumed for t in times) <= CATCH_UP_S * 100 + 2
    assert times[-1] - resumed > 0.8


# Publishing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("numbered", "count"), [(True, "3 events"), (False, "2 events")])
def test_event_that_has_its_number_when_ctrl_c_comes_is_counted(
    numbered: bool, count: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [Item("a.b", data) for data in ("x", "y", "stop", "z")]
    with Peer("pub", streams=[Stream("a.**")], discovery="none") as peer:
        publish = peer.publish

        def interrupted(topic: str, data: str, **options: Any) -> None:
            if numbered or data != "stop":
                publish(topic, data, **options)
            if data == "stop":
                raise KeyboardInterrupt

        monkeypatch.setattr(peer, "publish", interrupted)
        tally, nobody = Tally(peer, quiet=False), Audience(0, 0.0, quiet=True)
        with pytest.raises(KeyboardInterrupt), tally:
            publish_all(peer, items, tally, nobody, None)
    assert f"published {count} in" in capsys.readouterr().err


# Events from arguments and lines ---------------------------------------------------------------


def lines(form: Form, *given: bytes, count: int = 0) -> list[Item]:
    return list(from_lines(form, [line + b"\n" for line in given], count))


def test_data_is_text_and_numbered() -> None:
    items = list(from_argument(Form("t.{n}", key="k{n}"), "x{n} {y}", 2))
    assert items == [Item("t.1", "x1 {y}", "k1"), Item("t.2", "x2 {y}", "k2")]


def test_json_data_may_hold_the_number() -> None:
    items = list(from_argument(Form("t", json=True), '{"id": {n}}', 2))
    assert [item.data for item in items] == [{"id": 1}, {"id": 2}]


def test_lines_are_text_as_they_are() -> None:
    items = lines(Form("t"), b"one", b"", b"  two \r")
    assert [item.data for item in items] == ["one", "", "  two "]


def test_a_line_that_is_not_text_stays_bytes() -> None:
    assert lines(Form("t"), b"\xff\x00")[0].data == b"\xff\x00"


def test_fields_of_json_lines_give_topic_and_key() -> None:
    form = Form("quotes.{symbol}", key="{id}", json=True)
    items = lines(form, b'{"symbol": "SAP", "id": 7}', b"", b'{"symbol": "IBM", "id": 8}')
    assert [(item.topic, item.key) for item in items] == [("quotes.SAP", "7"), ("quotes.IBM", "8")]


def test_count_stops_reading_lines() -> None:
    endless = iter(lambda: b"x\n", b"")
    assert len(list(from_lines(Form("t"), endless, 3))) == 3


def test_whole_events_carry_their_own_fields() -> None:
    form = Form("default", key="k", headers={"h": "1"}, events=True)
    first, second, third = lines(
        form,
        b'{"topic": "a", "key": "b", "headers": {"c": 2}, "data": [1]}',
        b'{"data": null}',
        b'{"topic": "a", "data_b64": "/w==", "time": "now", "position": "p"}',
    )
    assert first == Item("a", [1], "b", {"c": 2})
    assert second == Item("default", None, "k", {"h": "1"})
    assert third.data == b"\xff"


def test_text_marked_as_bytes_becomes_bytes_again() -> None:
    assert lines(Form("t", events=True), b'{"data": "abc", "bytes": true}')[0].data == b"abc"


def test_the_number_wins_over_a_field_of_that_name() -> None:
    assert fill("{n}-{m}", 3, {"n": "x", "m": "y"}, "here") == "3-y"


def test_headers_are_pairs() -> None:
    assert parse_headers(["a=1", "b=c=d", "e="]) == {"a": "1", "b": "c=d", "e": ""}
    assert parse_headers([]) is None
    for bad in ("a", "=b", ""):
        with pytest.raises(MeshError):
            parse_headers([bad])


# Values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": b"\xff"}, {"a": "/w=="}),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        ([(1, {None: 2})], [[1, {"None": 2}]]),
        (math.nan, "nan"),
        ({"bid": -math.inf, "ask": None}, {"bid": "-inf", "ask": None}),
        (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00Z"),
        (msgspec.msgpack.Ext(5, b"x"), {"ext": 5, "data_b64": "eA=="}),
        ("é\n", "é\n"),
    ],
)
def test_anything_has_a_form_in_json(value: Any, expected: Any) -> None:
    text = to_json(value)
    assert "\n" not in text
    assert json.loads(text) == expected


def test_text_from_elsewhere_cannot_move_the_cursor() -> None:
    assert safe("a\x1b[2Jb\nc\x9b\u202e") == "a\\x1b[2Jb\\nc\\x9b\\u202e"
    assert safe("Grüße, 世界") == "Grüße, 世界"


def test_nothing_that_a_peer_says_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Names come from announcements that anybody on the network can make."""
    bad, good = "\x1b[2Jpeer\n\x9b1A", "\\x1b[2Jpeer\\n\\x9b1A"
    rows = table("", "peer")
    rows.add_row(bad)
    console().print(rows)
    console().print(f"found {bad}", style="green")
    note(f"refused: {bad}")
    out, err = capsys.readouterr()
    assert [line.rstrip() for line in out.splitlines()] == ["peer", good, f"found {good}"]
    assert err == f"meshmsg: refused: {good}\n"
    write_logs(LogLevel.info)
    try:
        logging.getLogger("meshmsg.peer").error("%s: %s", "tcp://127.0.0.1:7", bad)
    finally:
        write_logs(LogLevel.warning)
    assert capsys.readouterr().err == f"meshmsg: tcp://127.0.0.1:7: {good}\n"


def test_times_are_exact_and_survive_a_strange_clock() -> None:
    assert iso_time(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
    assert iso_time(1 << 62).startswith("2116")
    assert iso_time(1 << 80) == str(1 << 80)
    assert clock_time(1 << 80) == str(1 << 80)
    assert clock_time(1_700_000_000_005_000_000).endswith(":20.005")


def test_times_are_read_with_and_without_units() -> None:
    assert [seconds("x", text) for text in ("2", "1.5", "500ms", "2m")] == [2, 1.5, 0.5, 120]
    for bad in ("-1", "nan", "inf", "soon", ""):
        with pytest.raises(MeshError):
            seconds("x", bad)


def test_start_is_read_in_all_its_forms() -> None:
    assert parse_where("live") == "live"
    assert parse_where("last:10") == "last:10"
    assert parse_where("1700000000.5") == 1700000000.5
    assert parse_where("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    local = parse_where("2026-01-31T12:00")
    assert isinstance(local, datetime)
    assert local.tzinfo is not None
    position = Position("p/**", 1700000000, 4)
    assert parse_where(str(position)) == position
    ago = parse_where("10m")
    assert isinstance(ago, float)
    expected = datetime.now(UTC) - timedelta(minutes=10)
    assert abs(ago - expected.timestamp()) < 60


@pytest.mark.parametrize(
    "text", ["", "last:", "last:x", "10x", "m", "p@1", "latest", "nan", "inf", "-1"]
)
def test_other_starts_are_refused(text: str) -> None:
    with pytest.raises(MeshError):
        parse_where(text)


def test_losses_and_ticks_have_words() -> None:
    assert by_reason({"gone": 1, "overflow": 2000, "evicted": 0}) == "gone 1, overflow 2,000"
    assert by_reason({}) == "-"
    assert [tick(True, "utf-8"), tick(False, "utf-8")] == ["✔", "✘"]
    assert [tick(True, "ascii"), tick(False, "nonsense")] == ["ok", "BAD"]
