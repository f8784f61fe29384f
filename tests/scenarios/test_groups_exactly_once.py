"""A durable publisher is killed again and again under its groups: nothing is done twice.

Groups of several members, in one process and in two, that acknowledge in every way there is.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshmsg import AsyncPeer, Event, Peer, Stream, Subscription
from meshmsg._wire.control import Kept
from meshmsg._wire.frame import encode_frame
from meshmsg._wire.subframe import Work, encode_work
from tests.support import processes
from tests.support.ports import free_port
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

KILLS = 20
#: A publisher that has published what it has lives up to this long.
LIFE_S = 1.5
#: Name, order, how members acknowledge.
GROUPS = [
    ("single", "key", "one by one"),
    ("bulk", "none", "batches"),
    ("auto", "none", "auto"),
    ("mixed", "key", "out of order"),
    ("apart", "none", "one by one"),
]

Name = tuple[int, int]


class Group:
    """What the applications of one group were given, together."""

    def __init__(self, name: str, order: str, way: str) -> None:
        self.name = name
        self.order = order
        self.way = way
        self.lock = threading.Lock()
        self.given: Counter[Name] = Counter()
        self.by_key: defaultdict[str, list[Name]] = defaultdict(list)
        self.stop = threading.Event()
        self.problems: list[str] = []
        self.aside: list[tuple[float, Event]] = []

    def note(self, name: Name, key: str | None) -> None:
        with self.lock:
            self.given[name] += 1
            if key is not None:
                self.by_key[key].append(name)

    def note_event(self, event: Event) -> None:
        self.note((event.position.epoch, event.position.seq), event.key)

    def work(self, address: str, seed: int) -> None:
        """One member."""
        options: dict[str, Any] = {"group": self.name, "order": self.order, "prefetch": 50}
        with (
            Peer(f"{self.name}-{seed}", connect=address) as peer,
            peer.subscribe("a.**", auto_ack=self.way == "auto", **options) as events,
        ):
            rng = Random(seed)
            while not self.stop.is_set():
                self._some(events, rng)
            self.problems += map(str, events.losses)

    def _some(self, events: Subscription, rng: Random) -> None:
        if self.way == "batches":
            for batch in events.batches(timeout=0.1):
                for event in batch:
                    self.note_event(event)
                events.ack(batch)
            return
        got = events.get_many(rng.choice([1, 5, 40]), timeout=0.1)
        for event in got:
            self.note_event(event)
        if self.way == "out of order":
            got = self._put_some_aside(got, rng)
        if self.way != "auto":
            for event in got:
                events.ack(event)

    def _put_some_aside(self, got: list[Event], rng: Random) -> list[Event]:
        """Some take as long as it takes to kill a publisher and to start another one."""
        now = time.monotonic()
        with self.lock:
            ripe = [event for due, event in self.aside if due < now]
            self.aside = [(due, event) for due, event in self.aside if due >= now]
            slow = [event for event in got if rng.random() < 0.01]
            self.aside += [(now + rng.random(), event) for event in slow]
        rest = [event for event in got if event not in slow] + ripe
        rng.shuffle(rest)
        return rest

    def listen(self, child: subprocess.Popen[bytes]) -> None:
        """One member in a process of its own."""
        assert child.stdout is not None
        for line in child.stdout:
            epoch, seq, key = line.split()
            self.note((int(epoch), int(seq)), None if key == b"None" else key.decode())


@contextmanager
def members(groups: list[Group], address: str) -> Iterator[None]:
    """Two of each group; of one, the second is apart."""
    threads, children = [], []
    for group in groups:
        for seed in range(2):
            target: Any = group.work
            args: tuple[Any, ...] = (address, seed)
            if group.name == "apart" and seed:
                child = processes.start(
                    processes.program("group_member", address, group.name), stdout=subprocess.PIPE
                )
                children.append(child)
                target, args = group.listen, (child,)
            threads.append(threading.Thread(target=target, args=args))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for group in groups:
            group.stop.set()
        for child in children:
            child.kill()
            child.wait()
        for thread in threads:
            thread.join(60)
        for child in children:
            assert child.stdout is not None
            child.stdout.close()


def one_life(data_dir: Path, address: str, seed: int, names: list[str], rng: Random) -> set[Name]:
    """Start a publisher and kill it; what it acknowledged.

    Amid publishing, or later, when its groups are at work; they need a moment to begin.
    """
    least = 1 + rng.randrange(300)
    more = rng.choice([0, 1000])
    settings = {"seed": seed, "fsync": "always", "groups": names, "threads": 1, "many": 5}
    settings["times"] = least + more
    command = processes.program("killed_publisher", data_dir, address, json.dumps(settings))
    child = processes.start(command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(least)]
    time.sleep(rng.choice([0.0, rng.random() * 0.2]) if more else rng.random() * LIFE_S)
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().split(b"\n")[:-1]  # the last one may have been cut
    child.wait()
    child.stdout.close()
    rows = [[int(word) for word in line.split()[:3]] for line in lines]
    return {(epoch, seq) for epoch, first, stop in rows for seq in range(first, stop)}


def lags(peer: Peer) -> list[int]:
    return [group["lag"] for group in peer.stats()["streams"]["a.**"]["groups"]]


def kill_under_groups(data_dir: Path, kills: int) -> None:
    """Kill a publisher this many times; every event is given once to each group, in its order."""
    rng = Random(5)
    address = f"tcp://127.0.0.1:{free_port()}"
    groups = [Group(*what) for what in GROUPS]
    names = [group.name for group in groups]
    acknowledged: set[Name] = set()
    with members(groups, address):
        for seed in range(kills):
            acknowledged |= one_life(data_dir, address, seed, names, rng)
        stream = Stream("a.**", durability="log", groups=names)
        with Peer("victim", bind=address, streams=[stream], data_dir=data_dir) as last:
            wait_until(lambda: lags(last) == [0] * len(groups), timeout=120)
            assert last.stats()["counters"].get("members_not_back", 0) == 0
    for group in groups:
        twice = {name: count for name, count in group.given.items() if count > 1}
        assert not twice, f"{group.name}: {len(twice)} events were given twice: {min(twice)}"
        assert acknowledged <= group.given.keys(), group.name
        assert group.problems == []
        if group.order == "key":
            assert all(found == sorted(found) for found in group.by_key.values()), group.name


def test_publisher_is_killed_and_no_member_gets_anything_twice(tmp_path: Path) -> None:
    kill_under_groups(tmp_path, KILLS)


# Step by step ------------------------------------------------------------------------------------


class Shop:
    """A publisher that can be killed, and asked for its group's lag and who is awaited."""

    def __init__(
        self,
        data_dir: Path,
        address: str,
        first: int,
        stop: int,
        wait_s: float = 30.0,
    ) -> None:
        stream = {"topics": "a.**", "durability": "log", "groups": ["g"]}
        self._peer = RemotePeer(
            "shop",
            bind=address,
            streams=[stream],
            data_dir=str(data_dir),
            tuning={"member_return_s": wait_s},
        )
        keys = "key='k' if n % 2 else None"
        self._peer.run(f"for n in range({first}, {stop}): peer.publish('a.b', n, {keys})")

    def save_every(self, seconds: float) -> None:
        """How often it saves what its group has done, from the next time on."""
        self._peer.run(f"meshmsg._groups.progress_store.SAVE_S = {seconds}")

    def ask(self) -> dict[str, int]:
        group = self._peer.eval("peer.stats()['streams']['a.**']['groups'][0]")
        found = {name: int(group[name]) for name in ("lag", "awaited", "stale_acks")}
        return {**found, "members": len(group["members"])}

    def kill(self) -> None:
        self._peer.kill()

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def take(events: Subscription, count: int) -> list[Event]:
    found = []
    for _ in range(count):
        event = events.get(timeout=30)
        assert event is not None
        found.append(event)
    return found


@pytest.mark.parametrize("order", ["key", "none"])
def test_what_is_in_hand_stays_there_through_two_kills(tmp_path: Path, order: str) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("anna", connect=address) as anna,
        anna.subscribe("a.**", group="g", order=order, prefetch=4) as events,
    ):
        with Shop(tmp_path, address, 0, 10):
            first = take(events, 2)
        with Shop(tmp_path, address, 10, 20) as shop:
            wait_until(lambda: shop.ask()["members"] == 1, timeout=30)
            first += take(events, 1)
        events.ack(first[0])  # of a publisher that is not there
        with Shop(tmp_path, address, 20, 30) as shop:
            wait_until(lambda: shop.ask()["members"] == 1, timeout=30)
            rest = []
            for event in reversed(first[1:]):
                events.ack(event)
            while len(first) + len(rest) < 30:
                rest += take(events, 1)
                events.ack(rest[-1])
            wait_until(lambda: shop.ask()["lag"] == 0, timeout=30)
            assert shop.ask()["stale_acks"] == 0
            assert events.get(timeout=0.1) is None
        assert sorted(event.data for event in first + rest) == list(range(30))
        assert {event.attempt for event in first + rest} == {1}


@pytest.mark.parametrize("order", ["key", "none"])
def test_what_was_heard_and_not_saved_is_not_done_again(tmp_path: Path, order: str) -> None:
    """The disk is slow: the publisher knows what is done, and is killed before it is on disk."""
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("anna", connect=address) as anna,
        anna.subscribe("a.**", group="g", order=order, prefetch=4) as events,
    ):
        done = []
        for life in range(3):
            with Shop(tmp_path, address, life * 10, life * 10 + 10) as shop:
                wait_until(lambda shop=shop: shop.ask()["members"] == 1, timeout=30)  # type: ignore[misc]
                shop.save_every(600.0)
                while len(done) < life * 10 + 10:
                    done += take(events, 1)
                    events.ack(done[-1])
                wait_until(lambda shop=shop: shop.ask()["lag"] == 0, timeout=30)  # type: ignore[misc]
                assert events.get(timeout=0.1) is None
        assert sorted(event.data for event in done) == list(range(30))


def test_refusal_and_dead_letter_are_not_forgotten(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Peer("anna", connect=address) as anna,
        anna.subscribe("a.**", group="g", max_attempts=2) as events,
    ):
        with Shop(tmp_path, address, 0, 1) as shop:
            wait_until(lambda: shop.ask()["members"] == 1, timeout=30)
            shop.save_every(600.0)
            for attempt in (1, 2):
                (event,) = take(events, 1)
                assert event.attempt == attempt
                events.nack(event)
            wait_until(lambda: shop.ask()["lag"] == 0, timeout=30)
        with Shop(tmp_path, address, 1, 2) as shop:
            (event,) = take(events, 1)
            assert event.data == 1
            events.ack(event)
            wait_until(lambda: shop.ask()["lag"] == 0, timeout=30)
            assert events.get(timeout=0.1) is None


def test_work_of_a_membership_that_is_over_is_dropped(tmp_path: Path) -> None:
    """It was on its way when the publisher was killed, and comes later than its next start."""
    with (
        Peer("shop", streams=[Stream("a.**", durability="log")], data_dir=tmp_path) as shop,
        Peer("anna", connect=shop.address) as anna,
        anna.subscribe("a.**", group="g") as events,
    ):
        shop.wait_for_subscribers("a.b", timeout=30)
        member: Any = events._intake
        (old,) = member._tickets.values()
        side = shop._open_node().publisher
        with side._changed:
            (remote,) = side.groups.members.values()
            side.groups._suspend(remote, time.monotonic() - 1)
        wait_until(lambda: list(member._tickets.values()) not in ([], [old]), timeout=30)
        (source,) = member.sources() or member._sources()
        wire_id, epoch = source.wire_id, source.epoch
        work = Work(encode_frame(wire_id, epoch, 0, "a.b", [b"late"], 0), 0, 1, None, 1)
        with member.lock:
            member._on_message(encode_work(old, work))
        assert member.counters["stray_work"] == 1
        shop.publish("a.b", "now")
        (event,) = take(events, 1)
        assert event.data == "now"
        events.ack(event)


@pytest.mark.parametrize("order", ["key", "none"])
def test_broken_connection_brings_nothing_again(tmp_path: Path, order: str) -> None:
    """The publisher lives, and counts the member as lost: nobody else has got its work."""
    with (
        Peer("shop", streams=[Stream("a.**", durability="log")], data_dir=tmp_path) as shop,
        Peer("anna", connect=shop.address) as anna,
        anna.subscribe("a.**", group="g", order=order, prefetch=8) as events,
    ):
        shop.wait_for_subscribers("a.b", timeout=30)
        for n in range(20):
            shop.publish("a.b", n, key="k" if n % 2 else None)
        first = take(events, 3)
        events.ack(first[0])
        side = shop._open_node().publisher
        with side._changed:
            (remote,) = side.groups.members.values()
            side.groups._suspend(remote, time.monotonic() - 1)
        wait_until(lambda: events.stats()["counters"].get("parted"), timeout=30)
        for event in first[1:]:
            events.ack(event)
        rest = []
        while len(rest) < 17:
            rest += take(events, 1)
            events.ack(rest[-1])
        shop.flush(timeout=30)
        assert events.get(timeout=0.1) is None
        assert sorted(event.data for event in first + rest) == list(range(20))
        (group,) = shop.stats()["streams"]["a.**"]["groups"]
        assert (group["lag"], group["stale_acks"]) == (0, 0)


def test_member_forgets_what_is_on_the_publishers_disk(tmp_path: Path) -> None:
    with (
        Peer("shop", streams=[Stream("a.**", durability="log")], data_dir=tmp_path) as shop,
        Peer("anna", connect=shop.address) as anna,
        anna.subscribe("a.**", group="g", prefetch=200) as events,
    ):
        shop.wait_for_subscribers("a.b", timeout=30)
        shop.publish_many("a.b", list(range(100)))
        for event in take(events, 100):
            events.ack(event)
        (source,) = events._intake._sources()  # type: ignore[union-attr]
        wait_until(lambda: source.is_idle, timeout=30)


def work_off(events: Subscription, count: int) -> list[Any]:
    done = []
    for _ in range(count):
        (event,) = take(events, 1)
        events.ack(event)
        done.append(event.data)
    return done


def work_and_leave(address: str, count: int) -> list[Any]:
    with (
        Peer("anna", connect=address) as anna,
        anna.subscribe("a.**", group="g", prefetch=4) as events,
    ):
        return work_off(events, count)


def work_and_close_the_peer(address: str, count: int) -> list[Any]:
    with Peer("anna", connect=address) as anna:
        events = anna.subscribe("a.**", group="g", prefetch=4)
        return work_off(events, count)


def work_and_leave_a_loop(address: str, count: int) -> list[Any]:
    async def work() -> list[Any]:
        done = []
        async with AsyncPeer("anna", connect=address) as anna:
            async with anna.subscribe("a.**", group="g", prefetch=4) as events:
                for _ in range(count):
                    event = await events.get(30)
                    assert event is not None
                    events.ack(event)
                    done.append(event.data)
            assert events.closed
            anna._node.inlets.parting.clear()  # type: ignore[union-attr]  # it has waited already
        return done

    return asyncio.run(work())


@pytest.mark.parametrize(
    "work",
    [work_and_leave, work_and_close_the_peer, work_and_leave_a_loop],
    ids=lambda f: f.__name__,
)
def test_who_leaves_in_order_leaves_nothing_to_come_again(tmp_path: Path, work: Any) -> None:
    """It has left when what it has done is on disk, and that it is gone: nobody waits for it."""
    address = f"tcp://127.0.0.1:{free_port()}"
    with Shop(tmp_path, address, 0, 10) as shop:
        shop.save_every(0.3)
        done = work(address, 3)
    with Shop(tmp_path, address, 10, 11) as shop:
        assert shop.ask()["awaited"] == 0
        done += work(address, 8)
    assert sorted(done) == list(range(11))


def test_who_leaves_does_not_wait_for_whom_it_cannot_hear(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with Peer("anna", connect=address) as anna:
        events = anna.subscribe("a.**", group="g", prefetch=1)
        with Shop(tmp_path, address, 0, 10) as shop:
            wait_until(lambda: shop.ask()["members"] == 1, timeout=30)
            shop.save_every(600.0)
            for lag in (9, 8):
                events.ack(*take(events, 1))
                wait_until(lambda lag=lag: shop.ask()["lag"] == lag)
                if lag == 9:  # which is saved yet
                    (source,) = events._intake._sources()
                    wait_until(lambda source=source: not source.claims.done())
            began = time.monotonic()
            events.close()
            assert time.monotonic() - began > 0.5
        assert not anna._open_node().inlets.parting


def test_only_its_publisher_says_what_of_a_stream_is_kept(tmp_path: Path) -> None:
    with (
        Peer("shop", streams=[Stream("a.**", durability="log")], data_dir=tmp_path) as shop,
        Peer("other", streams=[Stream("a.**")]) as other,
        Peer("anna", connect=[shop.address, other.address]) as anna,
        anna.subscribe("a.**", group="g") as events,
    ):
        shop.wait_for_subscribers("a.b", timeout=30)
        events.wait_for_publishers(2, timeout=30)
        side = shop._open_node().publisher
        shop.publish("a.b", 1)
        with side.groups.keeper._disk:
            for event in take(events, 1):
                events.ack(event)
            member: Any = events._intake
            (source,) = [s for s in member._sources() if s.claims is not None]
            wait_until(source.claims.done, timeout=30)
            for name in ("other", "shop"):
                assert source.claims.done(), name
                (link,) = [one for one in anna._open_node().links.table.up() if one.peer == name]
                member.on_kept(link, Kept(member.sub, source.info.name, 1 << 62))
            assert not source.claims.done()


def test_who_joins_again_is_written_down_again(tmp_path: Path) -> None:
    """Its connection breaks, and it is back before the disk knows that it was gone."""
    with (
        Peer("shop", streams=[Stream("a.**", durability="log")], data_dir=tmp_path) as shop,
        Peer("anna", connect=shop.address) as anna,
        anna.subscribe("a.**", group="g") as events,
    ):
        shop.wait_for_subscribers("a.b", timeout=30)
        side = shop._open_node().publisher
        (seat,) = side.groups.seats
        wait_until(lambda: seat.saved_names == {events._intake.sub}, timeout=30)
        with side.groups.keeper._disk:
            with side._changed:
                (remote,) = side.groups.members.values()
                side.groups._suspend(remote, time.monotonic() - 1)
            wait_until(lambda: events.stats()["counters"].get("parted"), timeout=30)
            known = side.groups.members
            wait_until(lambda: any(m.work.connected for m in list(known.values())), timeout=30)
            shop.publish("a.b", "now")
            assert events.get(timeout=0.3) is None
        (event,) = take(events, 1)
        (record,) = side.groups.keeper._store(seat.outlet).load()
        assert record.members == (events._intake.sub,)
        events.ack(event)


@pytest.mark.parametrize("fate", ["comes back", "is dead"])
def test_group_waits_for_whoever_may_have_something_in_hand(tmp_path: Path, fate: str) -> None:
    """One member is slow to come back: nobody gets what it has, nor what is of the same key."""
    address = f"tcp://127.0.0.1:{free_port()}"
    with RemotePeer("bert", connect=address) as bert:
        bert.use("readers")
        bert.run("events = peer.subscribe('a.**', group='g', order='key', prefetch=4)")
        with Shop(tmp_path, address, 0, 10):
            bert.run("event = events.get(60)")
            taken = bert.eval("event.data")
            bert.stop()
        with (
            Peer("anna", connect=address) as anna,
            anna.subscribe("a.**", group="g", order="key", prefetch=4) as events,
            Shop(tmp_path, address, 10, 20, 30 if fate == "comes back" else 1.5) as shop,
        ):
            wait_until(lambda: shop.ask()["members"] == 1, timeout=30)
            assert shop.ask()["awaited"] == 1
            assert events.get(timeout=0.3) is None
            if fate == "comes back":
                bert.go_on()
                bert.run("events.ack(event); got = take_aside(events)")
            else:
                bert.kill()
            done = []
            while shop.ask()["lag"]:
                done += events.get_many(1, timeout=0.05)
                for event in done[-1:]:
                    events.ack(event)
            got = [taken, *bert.eval("got")] if fate == "comes back" else []
            assert shop.ask()["awaited"] == 0
    assert sorted(got + [event.data for event in done]) == list(range(20))
