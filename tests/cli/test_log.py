"""`meshmsg log`: what there is, what is in it, and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.groups.store import GroupRecord, GroupStore
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.cursors import Cursor
from meshmsg.recovery.log.writer import LogWriter

STREAM = "shop/orders.**"
TIME_NS = 1_700_000_000 * 10**9


def append(writer: LogWriter, values: list[Any], topic: str = "orders.eu") -> None:
    payloads = [msgspec.msgpack.encode(value) for value in values]
    wire_id = stream_wire_id("default", writer.stream)
    first = writer.next
    time_ns = TIME_NS + first * 10**9
    frame = encode_frame(wire_id, writer.epoch, first, topic, payloads, time_ns, raw=False)
    writer.append(frame, first, first + len(values))


def make(data_dir: Path, stream: str = STREAM) -> LogWriter:
    writer = LogWriter(
        str(data_dir), stream, settings=LogSettings(allocate_bytes=4096, tail_bytes=0)
    )
    with writer:
        writer.begin(5)
        for n in range(0, 100, 2):
            append(writer, [{"id": n}, {"id": n + 1}])
    return writer


def segment_of(writer: LogWriter) -> Path:
    return next(Path(writer.folder.path).glob("*.seg"))


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_ls_shows_logs_and_cursors(run: Any, tmp_path: Path) -> None:
    writer = make(tmp_path)
    make(tmp_path, "shop/other.**")
    writer.cursors().set(Cursor("audit", STREAM, 5, 41, hold=True))
    done = run("log", "ls", str(tmp_path))
    assert done.exit_code == 0
    assert "shop/orders.**" in done.stdout
    assert "cursor audit (holds)" in done.stdout
    first, second = objects(run("log", "ls", str(tmp_path), "--json").stdout)
    assert (first["stream"], first["events"]) == (STREAM, 100)
    assert first["epochs"] == [{"epoch": 5, "origin": 0, "first": 0, "stop": 100}]
    (cursor,) = first["cursors"]
    assert {"name": "audit", "epoch": 5, "seq": 41, "hold": True}.items() <= cursor.items()
    assert (cursor["events"], cursor["bytes"]) == (59, first["bytes"])
    assert second["cursors"] == []


def test_cursors_are_shown_and_dropped(run: Any, tmp_path: Path) -> None:
    writer = make(tmp_path)
    writer.cursors().set(Cursor("peer/audit", STREAM, 5, 90, hold=True, time_ns=TIME_NS))
    writer.cursors().set(Cursor("peer/other", STREAM, 5, 100))
    done = run("log", "cursors", str(tmp_path))
    assert done.exit_code == 0
    assert "peer/audit" in done.stdout
    found = objects(run("log", "cursors", str(tmp_path), "--json").stdout)
    assert [(c["name"], c["hold"], c["events"]) for c in found] == [
        ("peer/audit", True, 10),
        ("peer/other", False, 0),
    ]
    assert run("log", "cursors", str(tmp_path), "--drop", "nobody").exit_code == 2
    done = run("log", "cursors", str(tmp_path), "--drop", "peer/audit")
    assert (done.exit_code, done.stdout) == (0, f"dropped peer/audit of {STREAM}\n")
    assert [c.name for c in writer.cursors().all()] == ["peer/other"]


def test_groups_are_shown_and_dropped(run: Any, tmp_path: Path) -> None:
    writer = make(tmp_path)
    store = GroupStore(writer.folder, STREAM)
    store.save(
        GroupRecord("billing", (5, 40), [(5, 50, 60)], [(5, 41, 2)], "key", 3, ("orders.*",))
    )
    store.hold("billing", (5, 40), TIME_NS)
    store.save(GroupRecord("mail", (5, 100)))
    done = run("log", "groups", str(tmp_path))
    assert done.exit_code == 0
    assert "billing" in done.stdout
    billing, mail = objects(run("log", "groups", str(tmp_path), "--json").stdout)
    assert (billing["name"], billing["epoch"], billing["seq"], billing["backlog"]) == (
        "billing",
        5,
        40,
        50,
    )
    assert (billing["retries"], billing["order"], billing["topics"]) == (1, "key", ["orders.*"])
    assert (mail["name"], mail["backlog"]) == ("mail", 0)
    shown = run("log", "ls", str(tmp_path)).stdout
    assert "group billing" in shown
    assert "cursor group billing" not in shown
    (listed,) = objects(run("log", "ls", str(tmp_path), "--json").stdout)
    assert [group["name"] for group in listed["groups"]] == ["billing", "mail"]
    assert run("log", "groups", str(tmp_path), "--drop", "nobody").exit_code == 2
    refused = run("log", "cursors", str(tmp_path), "--drop", "group billing")
    assert refused.exit_code == 2
    assert "log groups" in refused.stderr
    done = run("log", "groups", str(tmp_path), "--drop", "billing")
    assert (done.exit_code, done.stdout) == (0, f"dropped billing of {STREAM}: 50 events\n")
    assert [group.name for group in store.load()] == ["mail"]
    assert writer.cursors().all() == []


def test_verify_looks_at_groups(run: Any, tmp_path: Path) -> None:
    writer = make(tmp_path)
    store = GroupStore(writer.folder, STREAM)
    store.save(GroupRecord("billing", (5, 40)))
    store.save(GroupRecord("early", (6, 0)))  # of an epoch that has no event yet
    assert run("log", "verify", str(tmp_path)).exit_code == 0
    store.save(GroupRecord("mail", (5, 101)))
    done = run("log", "verify", str(tmp_path))
    assert done.exit_code == 1
    assert "group mail stands at 5:101, beyond the log's end" in done.stdout
    Path(writer.folder.path, "groups", "mail.group").unlink()
    (path,) = Path(writer.folder.path, "groups").glob("billing.group")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = run("log", "verify", str(tmp_path))
    assert done.exit_code == 1
    assert "the group is damaged" in done.stdout


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("earliest", 0),
        ("last:3", 97),
        (f"{STREAM}@5:41", 41),
        ("1700000010", 10),
        ("2023-11-14T22:13:30+00:00", 10),
    ],
)
def test_cat_starts_where_it_is_told(run: Any, tmp_path: Path, start: str, wanted: int) -> None:
    make(tmp_path)
    done = run("log", "cat", str(tmp_path), "--start", start, "--json")
    assert done.exit_code == 0
    found = objects(done.stdout)
    assert found[0]["data"] == {"id": wanted}
    assert found[0]["position"] == f"{STREAM}@5:{wanted}"
    assert len(found) == 100 - wanted


def test_cat_prints_lines_for_people_and_stops_after_enough(run: Any, tmp_path: Path) -> None:
    make(tmp_path)
    done = run("log", "cat", str(tmp_path), "--count", "3")
    assert done.exit_code == 0
    assert [line.rpartition("  ")[2] for line in done.stdout.splitlines()] == [
        '{"id":0}',
        '{"id":1}',
        '{"id":2}',
    ]


def test_tail_shows_the_newest(run: Any, tmp_path: Path) -> None:
    make(tmp_path)
    done = run("log", "tail", str(tmp_path), "-n", "2", "--json")
    assert [found["data"]["id"] for found in objects(done.stdout)] == [98, 99]


def test_tail_follows_a_log_that_is_written(start: Callable[..., Any], tmp_path: Path) -> None:
    with LogWriter(str(tmp_path), STREAM) as writer:
        writer.begin(5)
        append(writer, ["zero"])
        tail = start("log", "tail", str(tmp_path), "--follow", "--json")
        tail.wait_for_line("zero")
        for n in range(5):
            append(writer, [f"more {n}"])
            tail.wait_for_line(f"more {n}")
        tail.interrupt()
        assert tail.end() == 130


def test_verify_is_content_with_a_whole_log(run: Any, tmp_path: Path) -> None:
    make(tmp_path)
    done = run("log", "verify", str(tmp_path))
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{STREAM}: good, 100 events in 50 frames")


def test_verify_names_what_is_damaged_and_fails(run: Any, tmp_path: Path) -> None:
    path = segment_of(make(tmp_path))
    data = bytearray(path.read_bytes())
    data[4096 + 100] ^= 1
    path.write_bytes(data)
    done = run("log", "verify", str(tmp_path))
    assert done.exit_code == 1
    assert "DAMAGED" in done.stdout
    assert "2 events lost in shop/orders.** (epoch 5, 0 to 1): corrupt" in done.stdout
    (report,) = objects(run("log", "verify", str(tmp_path), "--json").stdout)
    assert report["good"] is False
    assert report["losses"] == [
        {"stream": STREAM, "epoch": 5, "first": 0, "stop": 2, "count": 2, "reason": "corrupt"}
    ]
    done = run("log", "cat", str(tmp_path), "--count", "1")
    assert done.exit_code == 1
    assert "LOSS" in done.stdout


def test_verify_names_a_damaged_cursor(run: Any, tmp_path: Path) -> None:
    writer = make(tmp_path)
    writer.cursors().set(Cursor("audit", STREAM, 5, 41))
    (path,) = Path(writer.folder.path, "cursors").glob("*.cursor")
    path.write_bytes(path.read_bytes()[:-5])
    done = run("log", "verify", str(tmp_path))
    assert done.exit_code == 1
    assert "the cursor is damaged" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls", "nowhere"), "DIR: 'nowhere' cannot be read"),
        (("ls", "."), "DIR: there is no log in '.'"),
        (("cat", "logs"), "--stream: say which one: a/x, b/y"),
        (("cat", "logs", "--stream", "c/z"), "--stream: 'c/z' is not one of a/x, b/y"),
        (("cat", "logs", "--stream", "a/x", "--start", "live"), "--start: 'live' is not a place"),
        (("cat", "logs", "--stream", "a/x", "--start", "soon"), "--start: 'soon' is not"),
        (("cat", "logs", "--stream", "a/x", "--start", "a/y@5:1"), "is of another stream than a/x"),
    ],
)
def test_wrong_usage_says_what_would_be_right(
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    make(tmp_path / "logs", "a/x")
    make(tmp_path / "logs", "b/y")
    monkeypatch.chdir(tmp_path)
    done = run("log", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert message in done.stderr
