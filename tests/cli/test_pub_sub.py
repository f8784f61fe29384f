"""`meshmsg pub` and `meshmsg sub` as two processes, and against peers in this one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import meshmsg
from meshmsg import Peer
from meshmsg._model.config import Stream
from meshmsg.testing import lose_messages

FREE = "tcp://127.0.0.1:*"


def events_of(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what the publisher adds."""
    return [{k: v for k, v in o.items() if k not in ("time", "position")} for o in objects]


# Two processes ---------------------------------------------------------------------------------


def test_the_first_event_arrives_whole(start: Any) -> None:
    sub = start("sub", "greetings.**", "--bind", FREE, "--json", "--count", "1")
    pub = start(
        "pub",
        "greetings.world",
        "hello",
        "-k",
        "K",
        "-H",
        "a=1",
        "-H",
        "b=x=y",
        "-c",
        sub.address(),
    )
    assert pub.end() == 0
    assert sub.end() == 0
    (event,) = sub.objects()
    assert events_of([event]) == [
        {"topic": "greetings.world", "key": "K", "headers": {"a": "1", "b": "x=y"}, "data": "hello"}
    ]
    assert meshmsg.Position.parse(event["position"]).seq == 0
    assert event["time"].endswith("Z")
    assert "published 1 event in" in pub.errors()
    assert pub.out == []


def test_events_go_round_as_json_and_stay_the_same(start: Any, run: Any) -> None:
    given = [
        {"topic": "a.one", "key": None, "headers": {}, "data": {"x": [1, 2.5, None, "ü"]}},
        {"topic": "a.two", "key": "k", "headers": {"h": 1}, "data": "text"},
        {"topic": "a.two", "key": None, "headers": {}, "data": "abc", "bytes": True},
        {"topic": "a.three", "key": None, "headers": {}, "data_b64": "/wA="},
    ]
    sub = start("sub", "a.**", "--bind", FREE, "--json", "--count", str(len(given)))
    lines = "".join(json.dumps(event) + "\n" for event in given)
    assert run("pub", "--events", "-c", sub.address(), input=lines).exit_code == 0
    assert sub.end() == 0
    assert events_of(sub.objects()) == given


def test_lines_are_published_as_they_come(start: Any) -> None:
    """A line arrives while the pipe is still open: nothing waits for the end of the input."""
    sub = start("sub", "logs.**", "--bind", FREE, "--count", "2")
    pub = start("pub", "logs.app", "-c", sub.address(), stdin=subprocess.PIPE)
    pub.process.stdin.write(b"first\n")
    pub.process.stdin.flush()
    sub.wait_for_line(r"logs\.app  first$")
    pub.process.stdin.write(b"second\n")
    pub.process.stdin.close()
    pub.process.stdin = None
    assert pub.end() == 0
    assert sub.end() == 0
    assert len(sub.out) == 2


def test_dropped_frames_are_repaired_and_nobody_notices(start: Any, run: Any) -> None:
    sub = start("sub", "t.**", "--bind", FREE, "--json", "--count", "200", "--stats")
    options = ("--count", "200", "--rate", "2000", "--drop", "0.5", "--seed", "3")
    result = run("pub", "t.x", "{n}", *options, "--json", "-c", sub.address())
    assert result.exit_code == 0
    assert "frames were dropped on purpose" in result.stderr
    assert "; 0 of" not in result.stderr
    assert sub.end() == 0
    assert [event["data"] for event in sub.objects()] == list(range(1, 201))
    assert "lost 0" in sub.errors()


def test_settings_come_from_the_environment_and_a_file(start: Any, tmp_path: Path) -> None:
    config = tmp_path / "mesh.toml"
    config.write_text(
        '[peer]\nname = "filed"\nmesh = "other"\n'
        '[[stream]]\ntopics = "a.**"\nname = "mine"\noverflow = "block"\n'
    )
    where = f"ipc://{tmp_path}/pub"
    settings = {"MESHMSG_BIND": where, "MESHMSG_CONFIG": str(config)}
    pub = start("pub", "a.b", "x", "--wait-timeout", "60s", env=settings)
    assert pub.address() == where
    settings = {"MESHMSG_CONNECT": where, "MESHMSG_MESH": "other", "MESHMSG_NAME": "me"}
    sub = start("sub", "a.**", "--json", "--count", "1", env=settings)
    assert pub.end() == 0
    assert sub.end() == 0
    assert sub.objects()[0]["position"].startswith("filed/mine@")


def test_pub_reaches_a_subscriber_that_listens_on_ipc(start: Any, tmp_path: Path) -> None:
    where = f"ipc://{tmp_path}/sub"
    sub = start("sub", "a.**", "--bind", where, "--count", "1")
    sub.address()
    pub = start("pub", "a.b", "x", "--connect", where)
    assert pub.end() == 0, pub.errors()
    assert sub.end() == 0


# Against peers in this process -----------------------------------------------------------------


def test_lines_for_people(start: Any) -> None:
    with Peer("p", bind=FREE, streams=Stream("**")) as peer:
        sub = start("sub", "a.**", "--connect", peer.address, "--count", "4")
        peer.wait_for_subscribers("a.b", timeout=60)
        peer.publish("a.b", "one\x1b[2J\ntwo", key="K", headers={"h": 1})
        peer.publish("a.b", {"x": 1})
        peer.publish("a.b", b"plain bytes")
        peer.publish("a.b", b"\xff")
        assert sub.end() == 0
    shown = [line.rstrip("\n").split("  ", 1)[1] for line in sub.out]
    assert shown == [
        "a.b  [K]  h=1  one\\x1b[2J\\ntwo",
        'a.b  {"x":1}',
        "a.b  plain bytes",
        "a.b  base64:/w==",
    ]


def test_start_reaches_back(run: Any) -> None:
    with Peer("p", bind=FREE, streams=Stream("**")) as peer:
        positions = [peer.publish("a.b", n) for n in range(10)]

        def numbers(start: str, count: int) -> list[int]:
            options = ("--json", "--count", str(count), "--timeout", "30s", "--start", start)
            result = run("sub", "a.**", "--connect", peer.address, *options)
            assert result.exit_code == 0, result.stderr
            return [json.loads(line)["data"] for line in result.stdout.splitlines()]

        assert numbers("earliest", 10) == list(range(10))
        assert numbers("last:3", 3) == [7, 8, 9]
        assert numbers("1h", 10) == list(range(10))
        assert numbers(str(positions[5]), 5) == [5, 6, 7, 8, 9]


def test_too_few_events_in_time_fail(run: Any) -> None:
    with Peer("p", bind=FREE, streams=Stream("**")) as peer:
        peer.publish("a.b", 1)
        options = ("--count", "2", "--timeout", "300ms", "--start", "earliest")
        result = run("sub", "a.**", "--connect", peer.address, *options)
    assert result.exit_code == 1
    assert result.stdout.count("\n") == 1
    assert "1 of 2 events came within 300ms" in result.stderr


def test_silence_is_no_failure_where_no_count_was_asked_for(run: Any) -> None:
    with Peer("p", bind=FREE, streams=Stream("**")) as peer:
        result = run("sub", "a.**", "--connect", peer.address, "--timeout", "100ms")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def lose_for_good(peer: Peer, sub: Any) -> None:
    """Publish more than the stream keeps while the subscriber is frozen and nothing reaches it."""
    peer.publish("a.b", "before")
    sub.wait_for_line("before")
    sub.freeze()
    with lose_messages(peer, lambda message: True):
        peer.publish_many("a.b", [b"x" * 1000] * 1000)
    sub.thaw()
    peer.publish("a.b", "after")


def test_a_loss_is_shown_in_its_place_and_makes_the_status_1(start: Any) -> None:
    stream = Stream("**", overflow="drop_oldest", buffer_bytes="64KiB")
    with Peer("p", bind=FREE, streams=stream) as peer:
        sub = start("sub", "a.**", "--connect", peer.address, "--json", "--count", "20", "--stats")
        peer.wait_for_subscribers("a.b", timeout=60)
        lose_for_good(peer, sub)
        assert sub.end() == 1
    before, lost, *after = sub.objects()
    loss = lost["loss"]
    assert before["data"] == "before"
    assert (loss["stream"], loss["first"], loss["reason"]) == ("p/**", 1, "overflow")
    assert loss["count"] == loss["stop"] - loss["first"]
    seqs = [meshmsg.Position.parse(event["position"]).seq for event in after]
    assert seqs == list(range(loss["stop"], loss["stop"] + 19))
    assert f"lost {loss['count']} (overflow" in sub.errors()


def test_on_loss_raise_stops_there(start: Any) -> None:
    stream = Stream("**", overflow="drop_oldest", buffer_bytes="64KiB")
    with Peer("p", bind=FREE, streams=stream) as peer:
        sub = start("sub", "a.**", "--connect", peer.address, "--on-loss", "raise")
        peer.wait_for_subscribers("a.b", timeout=60)
        lose_for_good(peer, sub)
        assert sub.end() == 1
    assert sub.out[-1].startswith("LOSS  ")
    assert "overflow" in sub.out[-1]
    assert "after" not in "".join(sub.out)
    assert sub.errors() == ""


# When it does not work -------------------------------------------------------------------------


def test_pub_says_that_nobody_answers(run: Any, tmp_path: Path) -> None:
    options = ("--connect", f"ipc://{tmp_path}/nobody", "--wait-timeout", "200ms")
    result = run("pub", "a.b", "x", *options)
    assert result.exit_code == 1
    assert "no subscriber of a.b after 0.2 s: nobody answers at ipc://" in result.stderr
    assert "--wait 0" in result.stderr


def test_pub_says_how_to_start_a_subscriber(run: Any) -> None:
    result = run("pub", "a.b", "x", "--bind", FREE, "--wait-timeout", "100ms")
    assert result.exit_code == 1
    assert "start one with: meshmsg sub a.b --connect tcp://127.0.0.1:" in result.stderr


def test_pub_publishes_all_the_same_with_wait_0(run: Any) -> None:
    result = run("pub", "a.b", "x", "--bind", FREE, "--wait", "0", "--count", "3", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_pub_fails_when_a_subscriber_does_not_take_everything(start: Any, run: Any) -> None:
    sub = start("sub", "a.**", "--bind", FREE)
    address = sub.address()
    pub = start("pub", "a.b", "-c", address, "--drain-timeout", "200ms", stdin=subprocess.PIPE)
    pub.process.stdin.write(b"first\n")
    pub.process.stdin.flush()
    sub.wait_for_line("first")
    sub.freeze()
    pub.process.stdin.write(b"second\n")
    pub.process.stdin.close()
    pub.process.stdin = None
    assert pub.end() == 1
    assert "not received by all after 0.2 s" in pub.errors()
    assert "Traceback" not in pub.errors()
    sub.thaw()


def test_another_mesh_is_refused_in_words_and_only_once(run: Any) -> None:
    with Peer("p", bind=FREE, mesh="theirs") as peer:
        for verb in (("sub", "a.b"), ("pub", "a.b", "x"), ("ledger",), ("peers",)):
            result = run(*verb, "--connect", peer.address, "--mesh", "ours")
            assert result.exit_code == 1
            told = [line for line in result.stderr.splitlines() if peer.address in line]
            assert len(told) == 1
            assert "of mesh 'ours' meets mesh 'theirs'" in told[0]


def test_events_with_a_data_dir_outlive_the_command(run: Any, tmp_path: Path) -> None:
    listen = ("--bind", "tcp://127.0.0.1:*", "--data-dir", str(tmp_path), "--wait", "0")
    for n in range(2):
        done = run("pub", "orders.eu", f"{n}", "--json", *listen)
        assert done.exit_code == 0, done.stderr
    done = run("log", "cat", str(tmp_path), "--json")
    assert done.exit_code == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["data"] for event in events] == [0, 1]
