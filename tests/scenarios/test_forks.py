"""Forked children of a process with open peers: they cannot use them, and do not harm them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmsg import BindError, LogLocked, Loss, Peer, Stream
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.verify import verify
from tests.support.ports import free_port
from tests.support.remote import RemotePeer

DURABLE = {"topics": "orders.**", "durability": "log", "fsync": "always"}
VOLATILE = {"topics": "ticks.**"}

#: By the verbs of a peer, a subscription and a watch, as they are called in the child.
VERBS = {
    "publish": "peer.publish('orders.a', 1)",
    "a new topic": "peer.publish('orders.b', 1)",
    "publish with a key": "peer.publish('ticks.a', 1, key='k')",
    "a reference to publish": "publish('ticks.a', 1)",
    "publish_many": "peer.publish_many('ticks.a', [1, 2])",
    "flush": "peer.flush(1)",
    "subscribe": "peer.subscribe('x.**')",
    "subscribe in a group": "peer.subscribe('x.**', group='g')",
    "wait_for_subscribers": "peer.wait_for_subscribers('ticks.a', timeout=1)",
    "wait_for_peers": "peer.wait_for_peers(timeout=1)",
    "address": "peer.address",
    "stats": "peer.stats()",
    "peers": "peer.peers()",
    "on_peers": "peer.on_peers(print)",
    "watch_peers": "peer.watch_peers()",
    "ledger": "peer.ledger()",
    "ask": "peer.ask('stats', 1)",
    "open": "peer.open()",
    "get": "events.get(1)",
    "get_many": "events.get_many(5, 1)",
    "iteration": "next(iter(events))",
    "an iteration that had begun": "next(iteration)",
    "batches": "next(events.batches(1))",
    "wait_for_publishers": "events.wait_for_publishers(timeout=1)",
    "commit": "events.commit()",
    "losses": "events.losses",
    "subscription stats": "events.stats()",
    "ack": "jobs.ack(job)",
    "nack": "jobs.nack(job)",
    "get of a member": "jobs.get(1)",
    "get of a watch": "watch.get(1)",
    "iteration of a watch": "next(iter(watch))",
    "async publish": "asyncio.run(apeer.publish('a', 1))",
    "async publish_many": "asyncio.run(apeer.publish_many('a', [1]))",
    "async flush": "asyncio.run(apeer.flush(1))",
    "async subscribe": "apeer.subscribe('x')",
    "async get": "asyncio.run(aevents.get(1))",
    "async iteration": "asyncio.run(aiter(aevents).__anext__())",
    "async ledger": "asyncio.run(apeer.ledger(1))",
}


@contextmanager
def forking(name: str, **arguments: Any) -> Iterator[RemotePeer]:
    """A peer in a process of its own that can fork."""
    with RemotePeer(name, **arguments) as remote:
        remote.run("import forking, asyncio, os")
        remote.use("forks")
        yield remote


@pytest.fixture(params=["compiled", "pure"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts run the compiled core, or the Python code beside it."""
    monkeypatch.setenv("MESHMSG_PURE", "1" if request.param == "pure" else "0")


def numbers_in(data_dir: Path) -> list[int]:
    """The events in the only log of a data directory, which is whole."""
    (folder,) = find_logs(str(data_dir))
    assert verify(folder).is_good
    with LogReader(folder) as reader:
        reader.seek_earliest()
        runs = [run for run in reader.runs() if not isinstance(run, Loss)]
    frames = [run.frame for run in runs]
    return [int(p) for frame in frames for p in frame.payloads.split(0, frame.count)]


@pytest.mark.usefixtures("either_way")
def test_every_verb_in_a_forked_child_says_that_the_peer_is_the_parents(tmp_path: Path) -> None:
    with (
        Peer("source", streams=[]) as source,
        forking(
            "parent", streams=[DURABLE, VOLATILE], data_dir=str(tmp_path), connect=source.address
        ) as parent,
    ):
        parent.run("publish = peer.publish; publish('ticks.a', 0); publish('orders.a', 0)")
        parent.run("events = peer.subscribe('live.**', name='n')")
        parent.run("jobs = peer.subscribe('jobs.**', group='g')")
        parent.run("watch = peer.watch_peers(); watch.get(30)")
        parent.run("loop = asyncio.new_event_loop(); apeer = meshmsg.AsyncPeer('aparent')")
        parent.run("loop.run_until_complete(apeer.__aenter__())")
        parent.run("loop.run_until_complete(apeer.publish('a', 1))")
        parent.run("aevents = apeer.subscribe('x')")
        source.wait_for_subscribers("live.a", timeout=30)
        source.publish_many("live.a", [1, 2, 3])
        source.wait_for_subscribers("jobs.a", timeout=30)
        source.publish("jobs.a", 1)
        parent.run("iteration = iter(events); assert next(iteration).data == 1")
        parent.run("job = jobs.get(30); assert job is not None")
        found = {
            verb: parent.eval(f"forking.raised_in_child(lambda: {code})")
            for verb, code in VERBS.items()
        }
        assert found == dict.fromkeys(VERBS, "ForkedError")
        assert parent.eval("[next(iteration).data, next(iteration).data]") == [2, 3]
        parent.run("jobs.ack(job); loop.run_until_complete(apeer.close())")


def test_the_error_names_the_process_that_has_the_peer_and_what_to_do(tmp_path: Path) -> None:
    with forking("parent") as parent:
        text = parent.eval("str(forking.in_child(lambda: peer.publish('a', 1)))")
        pid = parent.eval("forking.in_child(lambda: peer.publish('a', 1)).pid")
    assert pid == parent.pid
    assert f"process {parent.pid}" in text
    assert "open" in text


@pytest.mark.usefixtures("either_way")
def test_what_the_parent_acknowledged_is_in_its_log_whatever_its_children_tried(
    tmp_path: Path,
) -> None:
    with forking("parent", streams=[DURABLE], data_dir=str(tmp_path)) as parent:
        status, done = parent.eval("publish_beside_a_child()")
        assert status == 0, "the child published"
        assert done == list(range(25))
    assert numbers_in(tmp_path) == list(range(25))


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit(0)",  # with all that Python does at its end
        "os._exit(0)",
        "peer.close(); events.close(); sys.exit(0)",
        "del peer, events; import gc; gc.collect(); sys.exit(0)",
    ],
)
def test_the_parent_goes_on_when_its_child_ends(tmp_path: Path, ending: str) -> None:
    with (
        Peer("other") as other,
        forking(
            "parent",
            streams=[DURABLE, {"topics": "bulk.**", "overflow": "spill"}],
            data_dir=str(tmp_path),
            connect=other.address,
        ) as parent,
        other.subscribe("orders.**") as events,
    ):
        parent.run("import sys; events = peer.subscribe('other.**')")
        parent.run("peer.wait_for_subscribers('orders.a', timeout=30)")
        other.wait_for_subscribers("other.a", timeout=30)
        status = parent.eval(f"forking.status_of_child({ending!r}, globals())")
        assert status == 0
        parent.run("peer.publish('orders.a', b'1'); peer.flush(30)")
        event = events.get(30)
        assert event is not None
        other.publish("other.a", 2)
        assert parent.eval("events.get(30).data") == 2
    assert numbers_in(tmp_path) == [1]


def test_leaving_a_with_block_in_the_child_is_quiet() -> None:
    with forking("parent") as parent:
        assert parent.eval("leave_block_in_a_child()") == 7


def kill(parent: RemotePeer) -> None:
    parent.kill()


def close(parent: RemotePeer) -> None:
    assert parent.close() == 0


@pytest.mark.parametrize("end", [kill, close])
def test_an_idle_child_keeps_neither_port_nor_log_nor_name_from_the_next_start(
    tmp_path: Path, end: Callable[[RemotePeer], None]
) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    arguments: dict[str, Any] = {
        "streams": [DURABLE],
        "data_dir": str(tmp_path),
        "bind": address,
    }
    with (
        forking("parent", **arguments) as parent,
        RemotePeer("sub", connect=address) as sub,
    ):
        parent.run("peer.publish('orders.a', b'0')")
        parent.run("named = peer.subscribe('x.**', start='committed', name='reader')")
        sub.run("events = peer.subscribe('orders.**'); events.wait_for_publishers(timeout=30)")
        child = parent.eval("forking.idle_child()")
        try:
            end(parent)
            with RemotePeer("parent", **arguments) as again:  # the child still has all it had
                os.kill(child, 0)
                again.run("peer.subscribe('x.**', start='committed', name='reader')")
                again.run("peer.wait_for_subscribers('orders.a', timeout=30)")
                again.run("peer.publish('orders.a', b'1')")
                assert sub.eval("int(events.get(30).data)") == 1
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_keeps_port_and_log_is_named_and_not_its_dead_parent(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    arguments: dict[str, Any] = {"streams": [Stream(**DURABLE)], "data_dir": tmp_path}
    with forking("parent", streams=[DURABLE], data_dir=str(tmp_path), bind=address) as parent:
        parent.run("peer.publish('orders.a', b'0')")
        child = parent.eval("forking.forked_in_c()")
        try:
            parent.kill()
            with pytest.raises(BindError, match=f"process {child}"), Peer("parent", bind=address):
                pass
            with pytest.raises(LogLocked, match=f"process {child}"), Peer("parent", **arguments):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_has_none_of_its_parents_sockets_so_that_others_see_the_parent_die() -> None:
    quotes = {"topics": "quotes.**", "transport": {"group": f"239.255.7.9:{free_port()}"}}
    with (
        Peer("other", streams=[Stream("live.**")]) as other,
        forking("parent", connect=other.address, streams=[VOLATILE, quotes]) as parent,
        other.subscribe("ticks.**", "quotes.**") as events,
    ):
        parent.run("events = peer.subscribe('live.**')")
        parent.run("mine = __import__('socket').create_server(('127.0.0.1', 0))")
        other.wait_for_subscribers("live.a", timeout=30)
        events.wait_for_publishers(2, timeout=30)
        mine = parent.eval("f'SOCK_STREAM {mine.getsockname()}'")
        assert len(parent.eval("forking.sockets()")) > 5
        assert parent.eval("forking.in_child(forking.sockets)") == [mine]  # which is not ours


@pytest.mark.usefixtures("either_way")
def test_a_peer_that_is_opened_in_the_child_works_beside_the_parents(tmp_path: Path) -> None:
    with (
        Peer("other") as other,
        other.subscribe("**") as events,
        forking("parent", connect=other.address, streams=[VOLATILE]) as parent,
    ):
        parent.run("peer.wait_for_subscribers('ticks.a', timeout=30)")
        # Made before the fork, opened after it.
        parent.run(f"later = meshmsg.Peer('later', connect={other.address!r})")
        assert parent.eval("forking.in_child(lambda: publish_as_others(later), 50)") == "done"
        parent.run("peer.publish('ticks.a', 'parent'); peer.flush(30)")
        got = {event.data for _ in range(3) if (event := events.get(30)) is not None}
    assert got == {"later", "made", "parent"}


def test_children_of_multiprocessing_are_told_and_end_well() -> None:
    with forking("parent", streams=[VOLATILE]) as parent:
        told, statuses = parent.eval("publish_in_processes(4)")
        assert told == ["ForkedError"] * 4
        assert statuses == [0] * 4
        assert parent.eval("peer.publish('ticks.a', 0).seq") == 0
