"""Work groups in one process: who gets what, acknowledgements, refusals, dead letters, overload."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from meshmsg import (
    AsyncPeer,
    ConfigError,
    Peer,
    PeerRefused,
    PublishTimeout,
    Stream,
    Subscription,
    Tuning,
)
from tests.support.waiting import wait_until


@contextmanager
def mesh(members: int = 1, stream: dict[str, Any] | None = None, **options: Any) -> Iterator[Any]:
    """A publisher of `jobs.**`, and members of group `workers` that are admitted."""
    with ExitStack() as stack:
        boss = stack.enter_context(Peer("boss", streams=[Stream("jobs.**", **(stream or {}))]))
        subscriptions = []
        for n in range(members):
            peer = stack.enter_context(Peer(f"worker{n}", connect=boss.address))
            events = peer.subscribe("jobs.**", group="workers", **options)
            subscriptions.append(stack.enter_context(events))
        if members:
            boss.wait_for_subscribers("jobs.x", count=members, timeout=30)
        yield boss, *subscriptions


def group_of(boss: Peer, label: str = "jobs.**") -> dict[str, Any]:
    return dict(boss.stats()["streams"][label]["groups"][0])


def take(events: Subscription, count: int, timeout: float = 30.0) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + timeout
    while len(found) < count and time.monotonic() < deadline:
        found += events.get_many(count - len(found), timeout=0.2)
    assert len(found) == count, f"{len(found)} of {count} events: {events.stats()}"
    return found


# Who gets what -----------------------------------------------------------------------------------


def test_groups_and_fan_out_each_get_every_event() -> None:
    with (
        mesh(members=2) as (boss, one, two),
        Peer("other", connect=boss.address) as other,
        other.subscribe("jobs.**", group="audit") as audit,
        other.subscribe("jobs.**") as fan_out,
    ):
        boss.wait_for_subscribers("jobs.x", count=4, timeout=30)
        boss.publish_many("jobs.x", range(100))
        assert [event.data for event in take(fan_out, 100)] == list(range(100))
        got = take(audit, 64)
        audit.ack(got)
        got += take(audit, 36)
        assert sorted(event.data for event in got) == list(range(100))
        shared = take(one, 50) + take(two, 50)
        assert sorted(event.data for event in shared) == list(range(100))
        assert {event.attempt for event in shared} == {1}
        one.ack(shared)
        audit.ack(*got[64:])
        boss.flush(30)
        assert boss.ledger().reconciles


def test_positions_are_those_of_the_stream() -> None:
    with mesh() as (boss, events):
        for n in range(5):
            position = boss.publish("jobs.x", n, key=f"k{n % 2}", headers={"n": n})
            event = events.get(30)
            assert event is not None
            assert (event.position, event.data, event.key) == (position, n, f"k{n % 2}")
            assert event.headers == {"n": n}
            events.ack(event)


def test_topics_that_the_group_does_not_take_are_filtered() -> None:
    with (
        Peer("boss", streams=[Stream("jobs.**")]) as boss,
        Peer("worker", connect=boss.address) as worker,
        worker.subscribe("jobs.mine", "jobs.ours.*", group="workers") as events,
    ):
        boss.wait_for_subscribers("jobs.mine", timeout=30)
        for n in range(30):
            boss.publish(("jobs.mine", "jobs.theirs", "jobs.ours.x")[n % 3], n)
        got = take(events, 20)
        assert sorted(event.data for event in got) == [n for n in range(30) if n % 3 != 1]
        events.ack(got)
        boss.flush(30)
        (row,) = (r for r in boss.ledger().rows if r.subscription == "group workers")
        assert (row.published, row.delivered, row.filtered, row.in_flight) == (30, 20, 10, 0)


def test_batches_are_acknowledged_as_a_whole() -> None:
    with mesh(prefetch=1000) as (boss, events):
        boss.publish_many("jobs.x", range(3000))
        got: list[int] = []
        for batch in events.batches(timeout=30):
            got += batch.data
            assert set(batch.attempts) == {1}
            events.ack(batch)
            if len(got) == 3000:
                break
        assert got == list(range(3000))
        boss.flush(30)
        assert group_of(boss)["acked"] == 3000


def test_rest_of_a_batch_can_be_taken_as_a_batch() -> None:
    with mesh() as (boss, events):
        boss.publish_many("jobs.x", range(10))
        first = events.get(30)
        assert first is not None
        events.ack(first)
        rest = next(events.batches(timeout=30))
        assert [first.data, *rest.data] == list(range(10))
        events.ack(rest)
        boss.flush(30)


def test_rest_of_a_batch_does_not_come_again_in_the_loop() -> None:
    with mesh() as (boss, events):
        boss.publish_many("jobs.x", range(10))
        loop = iter(events)
        first = next(loop)
        rest = next(events.batches(timeout=30))
        boss.publish_many("jobs.x", range(10, 12))
        more = [next(loop), next(loop)]
        assert [e.data for e in (first, *rest, *more)] == list(range(12))
        events.ack(first, rest, *more)
        boss.flush(30)


def test_auto_ack_settles_what_was_handed_over() -> None:
    with mesh(auto_ack=True) as (boss, events):
        boss.publish_many("jobs.x", range(100))
        take(events, 100)
        assert events.get(timeout=0.01) is None  # asking for the next one acknowledges
        boss.flush(30)
        assert group_of(boss)["acked"] == 100


def test_async_members_share_the_work() -> None:
    async def run() -> None:
        async with (
            AsyncPeer("boss", streams=[Stream("jobs.**")]) as boss,
            AsyncPeer("one", connect=boss.address) as one,
            AsyncPeer("two", connect=boss.address) as two,
            one.subscribe("jobs.**", group="workers") as a,
            two.subscribe("jobs.**", group="workers") as b,
        ):
            await boss.wait_for_subscribers("jobs.x", count=2, timeout=30)
            got: list[int] = []

            async def work(events: Any) -> None:
                async for event in events:
                    with event:
                        got.append(event.data)
                    if len(got) == 500:
                        a.close()
                        b.close()

            jobs = asyncio.gather(work(a), work(b))
            await boss.publish_many("jobs.x", range(500), keys=[str(n % 7) for n in range(500)])
            await asyncio.wait_for(jobs, 20)
            assert sorted(got) == list(range(500))

    asyncio.run(run())


# Acknowledgements --------------------------------------------------------------------------------


def test_with_event_acks_on_success_and_nacks_on_an_exception() -> None:
    with mesh(max_attempts=3) as (boss, events):
        boss.publish("jobs.x", 1)
        event = events.get(30)
        assert event is not None
        with pytest.raises(KeyError), event:
            raise KeyError("gone")
        again = events.get(30)
        assert again is not None
        assert (again.position, again.attempt) == (event.position, 2)
        with again as same:
            assert same is again
        boss.flush(30)
        stats = group_of(boss)
        assert (stats["acked"], stats["nacked"], stats["redelivered"]) == (1, 1, 1)


def test_nack_waits_for_its_delay_and_may_go_elsewhere() -> None:
    with mesh(members=2) as (boss, one, two):
        boss.publish("jobs.x", "job")
        first = one.get(0.5)
        holder, other = (one, two) if first is not None else (two, one)
        first = first or two.get(30)
        assert first is not None
        nacked = time.monotonic()
        holder.nack(first, delay="300ms", error="not now")
        second = other.get(30)
        assert second is not None, "the other member gets it"
        assert time.monotonic() - nacked >= 0.3
        assert second.attempt == 2
        other.ack(second)
        boss.flush(30)


def test_late_ack_is_stale_refused_and_counted() -> None:
    with mesh(members=2, ack_timeout=1.0) as (boss, one, two):
        boss.publish("jobs.x", "job")
        first = one.get(0.2)
        holder, other = (one, two) if first is not None else (two, one)
        first = first or two.get(30)
        assert first is not None
        second = other.get(30)
        assert second is not None
        assert second.attempt == 2
        holder.ack(first)  # too late
        wait_until(lambda: group_of(boss)["stale_acks"] == 1)
        assert group_of(boss)["acked"] == 0
        other.ack(second)
        boss.flush(30)
        stats = group_of(boss)
        assert (stats["acked"], stats["timed_out"], stats["stale_acks"]) == (1, 1, 1)


class Wordless(Exception):
    def __str__(self) -> str:
        raise TypeError("it has no text")


@pytest.mark.parametrize("error", [ValueError("half a pair: \udc80"), Wordless()])
def test_any_exception_gives_an_event_back_and_costs_no_ack(error: Exception) -> None:
    with mesh(members=1) as (boss, events):
        boss.publish_many("jobs.x", [1, 2])
        one, two = take(events, 2)
        events.ack(one)
        with pytest.raises(type(error)) as caught, two:
            raise error
        assert caught.value is error
        again = events.get(30)
        assert (again.data, again.attempt) == (2, 2)
        with pytest.raises(ConfigError, match="at most"):
            events.nack(again, delay=1e10)
        events.ack(again)
        boss.flush(30)
        assert group_of(boss)["acked"] == 2


@pytest.mark.parametrize("bytes_max", [16 * 1024, 3000])
def test_more_acks_than_a_settlement_holds_are_all_said(
    bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second event: a range for each."""
    monkeypatch.setattr("meshmsg._groups.work_batch.ACK_RANGES_MAX", 100)
    monkeypatch.setattr("meshmsg._groups.consumer.SETTLED_BYTES_MAX", bytes_max)
    count = 1000
    with mesh(members=1, prefetch=1000, order="none") as (boss, events):
        boss.publish_many("jobs.x", range(count))
        got = take(events, count)
        with events._intake._settle_lock:  # nobody says any of it before all is there
            for event in got[::2]:
                event._batch._acks.append(event.position.seq)
        events._intake.say()
        wait_until(lambda: group_of(boss)["acked"] == count // 2)
        events.ack(got[1::2])
        boss.flush(30)


def test_member_that_was_parted_hands_out_nothing_of_what_others_have() -> None:
    with mesh(members=1) as (boss, events):
        boss.publish_many("jobs.x", range(10))
        assert events.get(30).data == 0
        publisher = boss._node.publisher

        def give_up() -> None:
            with publisher._lock:
                for member in list(publisher.groups.members.values()):
                    publisher.groups._drop(member, "thought to be gone", time.monotonic())

        boss._node.call(give_up)
        wait_until(lambda: events._intake.counters["parted"] == 1)
        got = []
        for _ in range(10):  # one by one: any of them may be why it was gone
            got += take(events, 1)
            events.ack(got[-1])
        assert sorted(event.data for event in got) == list(range(10))
        assert {event.attempt for event in got} == {2}
        boss.flush(30)


def test_last_words_that_have_come_are_heard_however_late_they_are_read() -> None:
    """The publisher's thread is held up: it sees a broken connection, and its time is up."""
    with mesh() as (boss, events):
        boss.publish("jobs.x", 1)
        event = events.get(30)
        assert event is not None
        publisher, left = boss._node.publisher, threading.Event()

        def stall() -> None:
            (remote,) = publisher.groups.members.values()
            left.wait(30)
            wait_until(lambda: not events._node._outgoing)
            wait_until(lambda: boss._node._server.pollable.poll(0))
            with publisher._lock:
                publisher.groups._suspend(remote, time.monotonic() - 1)

        boss._node.call(stall)
        events.ack(event)
        events.close()
        left.set()
        wait_until(lambda: not group_of(boss)["members"])
        group = group_of(boss)
        assert (group["acked"], group["lag"], group["stale_acks"]) == (1, 0, 0)


def test_member_that_leaves_keeps_its_connection_until_its_last_words_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its control channel is held up: for as long as a publisher takes to miss a lost member."""
    monkeypatch.setattr("meshmsg._peer.node.FAREWELL_S", 30.0)
    with mesh() as (boss, events):
        boss.publish("jobs.x", 1)
        event = events.get(30)
        assert event is not None
        held = threading.Event()
        events._node.call(lambda: held.wait(30))
        events.ack(event)
        leaving = threading.Thread(target=events.close)
        leaving.start()
        wait_until(lambda: events.closed)
        with suppress(AssertionError):  # it does not come
            wait_until(lambda: boss.stats()["counters"].get("members_lost"), timeout=0.5)
        held.set()
        leaving.join(30)
        wait_until(lambda: not group_of(boss)["members"])
        group = group_of(boss)
        assert (group["acked"], group["lag"], group["stale_acks"]) == (1, 0, 0)
        assert not events._node.inlets.parting
        assert events._intake._inlet.wakeup.fd < 0, "its sockets are closed then"


def test_member_whose_publisher_is_gone_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshmsg._peer.node.FAREWELL_S", 3600.0)
    with mesh() as (boss, events):
        boss.close()
        events.close()
        assert not events._node.inlets.parting


def test_asyncio_member_that_nobody_waits_for_is_closed_when_its_publisher_has_answered() -> None:
    async def work(address: str) -> None:
        async with AsyncPeer("anna", connect=address) as anna:
            events = anna.subscribe("jobs.**", group="workers")
            await events.wait_for_publishers(timeout=30)
            events.close()
            while anna._open_node().inlets.parting or events._intake._inlet.wakeup.fd >= 0:
                await asyncio.sleep(0.001)

    with Peer("boss", streams=[Stream("jobs.**")]) as boss:
        asyncio.run(asyncio.wait_for(work(boss.address), 30))


def test_double_ack_counts_once() -> None:
    with mesh() as (boss, events):
        boss.publish("jobs.x", 1)
        event = events.get(30)
        assert event is not None
        events.ack(event, event)
        events.ack([event])
        boss.flush(30)
        wait_until(lambda: group_of(boss)["stale_acks"] == 2)
        assert group_of(boss)["acked"] == 1


def test_acks_of_a_busy_member_are_not_held_back() -> None:
    with mesh() as (boss, events):
        boss.publish_many("jobs.x", range(10))
        event = events.get(30)
        assert event is not None
        events.ack(event)  # and nothing more is asked for
        wait_until(lambda: group_of(boss)["acked"] == 1, timeout=30)
        events.ack(take(events, 9))


def test_threads_may_share_a_member() -> None:
    with mesh(prefetch=50) as (boss, events):
        got: list[int] = []

        def work() -> None:
            for event in events:
                got.append(event.data)
                events.ack(event)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for n in range(2000):
            boss.publish("jobs.x", n)
        boss.flush(30)
        events.close()
        for thread in threads:
            thread.join(30)
        assert sorted(got) == list(range(2000))
        assert group_of(boss)["acked"] == 2000


def test_outside_of_groups_there_is_nothing_to_acknowledge() -> None:
    with (
        Peer("boss") as boss,
        Peer("reader", connect=boss.address) as reader,
        reader.subscribe("**") as events,
    ):
        boss.wait_for_subscribers("x", timeout=30)
        boss.publish_many("x", [1, 2])
        event = events.get(30)
        assert event is not None
        assert event.attempt == 1
        for wrong in (
            lambda: events.ack(event),
            lambda: events.nack(event),
            lambda: events.ack(event._batch),
        ):
            with pytest.raises(ConfigError, match="group"):
                wrong()
        with event:  # its handling is a span of a trace, if there is one, and nothing is settled
            pass
        with pytest.raises(KeyError), event:
            raise KeyError


@pytest.mark.parametrize("wrong", [None, "event", b"event", 5, ["event"], [None]])
def test_what_is_no_event_is_refused_by_name(wrong: Any) -> None:
    with mesh() as (_, events):
        with pytest.raises(ConfigError, match="not an event"):
            events.ack(wrong)
        with pytest.raises(ConfigError, match="not an event"):
            events.nack(wrong)


# Leaving -----------------------------------------------------------------------------------------


def test_member_that_leaves_gives_unopened_work_back() -> None:
    with mesh(prefetch=100) as (boss, events):
        boss.publish_many("jobs.x", range(50))
        got = take(events, 10)
        events.ack(got[:8])
        with (
            Peer("next", connect=boss.address) as peer,
            peer.subscribe("jobs.**", group="workers", prefetch=100) as others,
        ):
            boss.wait_for_subscribers("jobs.x", count=2, timeout=30)
            events.close()
            rest = take(others, 42)
            attempts = {event.data: event.attempt for event in rest}
            assert attempts == {n: 2 if n in (8, 9) else 1 for n in range(8, 50)}
            others.ack(rest)
            boss.flush(30)
        stats = group_of(boss)
        assert (stats["returned"], stats["redelivered"]) == (40, 2)


def test_member_that_leaves_within_its_loop_gets_nothing_more() -> None:
    with mesh(prefetch=100) as (boss, events):
        boss.publish_many("jobs.x", range(50))
        got = []
        for event in events:
            got.append(event.data)
            events.ack(event)
            if len(got) == 10:
                events.close()
        assert got == list(range(10))
        with (
            Peer("next", connect=boss.address) as peer,
            peer.subscribe("jobs.**", group="workers", prefetch=100) as others,
        ):
            rest = take(others, 40)
            assert [event.data for event in rest] == list(range(10, 50))
            others.ack(rest)
            boss.flush(30)


def test_group_without_members_keeps_its_place() -> None:
    with mesh() as (boss, events):
        boss.publish_many("jobs.x", range(5))
        events.ack(take(events, 5))
        boss.flush(30)
        events.close()
        wait_until(lambda: not group_of(boss)["members"])
        boss.publish_many("jobs.x", range(5, 10))
        with (
            Peer("next", connect=boss.address) as peer,
            peer.subscribe("jobs.**", group="workers") as others,
        ):
            got = take(others, 5)
            assert [event.data for event in got] == [5, 6, 7, 8, 9]
            others.ack(got)
            boss.flush(30)


def test_group_is_given_up_after_a_time() -> None:
    with mesh(stream={"group_keep": "100ms"}) as (boss, events):
        events.close()
        wait_until(lambda: boss.stats()["streams"]["jobs.**"]["groups"] == [])
        boss.publish_many("jobs.x", range(5))
        (row,) = (r for r in boss.ledger().rows if r.subscription == "group workers")
        assert row.state == "expired"
        assert row.reconciles
        boss.flush(1)


def test_group_is_not_given_up_while_a_member_is_on_its_way() -> None:
    with (
        Peer("boss", streams=[Stream("jobs.**", group_keep="1ms")]) as boss,
        Peer("worker", connect=boss.address) as worker,
    ):
        groups = boss._node.publisher.groups
        enter = groups._enter

        def late(member: Any, now: float) -> None:
            groups.on_tick(now + 1)  # long after what `group_keep` allows, as seen by the clock
            enter(member, now)

        groups._enter = late
        with worker.subscribe("jobs.**", group="workers") as events:
            boss.wait_for_subscribers("jobs.x", timeout=30)
            boss.publish("jobs.x", 1)
            events.ack(take(events, 1))
            boss.flush(30)


def test_declared_group_keeps_events_from_the_first_on() -> None:
    with (
        Peer("boss", streams=[Stream("jobs.**", groups="workers")]) as boss,
        Peer("worker", connect=boss.address) as worker,
    ):
        boss.publish_many("jobs.x", range(20))
        with worker.subscribe("jobs.**", group="workers") as events:
            got = take(events, 20)
            assert [event.data for event in got] == list(range(20))
            events.ack(got)
            boss.flush(30)


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "options", "words"),
    [
        ("jobs.**", {"order": "none"}, "order='none', and the group has order='key'"),
        ("jobs.**", {"max_attempts": 7}, "max_attempts=7, and the group has max_attempts=5"),
        ("jobs.x", {}, r"the topics jobs\.x, and the group has jobs\.\*\*"),
    ],
)
def test_member_that_disagrees_is_refused(topics: str, options: dict[str, Any], words: str) -> None:
    with (
        mesh() as (boss, events),
        Peer("late", connect=boss.address) as late,
        late.subscribe(topics, group="workers", **options) as refused,
    ):
        with pytest.raises(PeerRefused, match=words):
            refused.get(timeout=30)
        boss.publish("jobs.x", 1)
        events.ack(take(events, 1))
        boss.flush(30)


def test_member_is_told_also_where_the_reason_is_longer_than_a_message_takes() -> None:
    topics = [f"jobs.{n}.{'x' * 100}" for n in range(100)]
    with (
        mesh(members=1) as (boss, _),
        Peer("late", connect=boss.address) as late,
        late.subscribe(*topics, group="workers") as refused,
        pytest.raises(PeerRefused, match="asks for the topics"),
    ):
        refused.get(timeout=30)


def test_when_all_have_left_others_may_agree_anew() -> None:
    with mesh(order="none") as (boss, events):
        events.close()
        wait_until(lambda: not group_of(boss)["members"])
        with (
            Peer("next", connect=boss.address) as peer,
            peer.subscribe("jobs.**", group="workers", order="key") as others,
        ):
            boss.wait_for_subscribers("jobs.x", count=1, timeout=30)
            boss.publish("jobs.x", 1, key="k")
            others.ack(take(others, 1))
            boss.flush(30)
            assert group_of(boss)["order"] == "key"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"group": "a b"}, "group"),
        ({"group": "a*"}, "group"),
        ({"group": ""}, "group"),
        ({"group": "g", "prefetch": 0}, "prefetch"),
        ({"group": "g", "prefetch": True}, "prefetch"),
        ({"group": "g", "max_attempts": 0}, "max_attempts"),
        ({"group": "g", "ack_timeout": 0}, "ack_timeout"),
        ({"group": "g", "ack_timeout": "soon"}, "ack_timeout"),
        ({"group": "g", "ack_timeout": 1e10}, "ack_timeout"),
        ({"group": "g", "order": "keys"}, "order"),
        ({"prefetch": 5}, "group"),
        ({"auto_ack": True}, "group"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, Any], field: str) -> None:
    with Peer("peer") as peer, pytest.raises(ConfigError) as caught:
        peer.subscribe("jobs.**", **options)
    assert caught.value.field == field


def test_group_is_declared_once() -> None:
    with pytest.raises(ConfigError, match="each name once"):
        Stream("jobs.**", groups=["workers", "workers"])


# Dead letters ------------------------------------------------------------------------------------


def test_poison_goes_to_the_dead_letters_with_its_history() -> None:
    with mesh(members=2, max_attempts=3) as (boss, *workers):
        position = boss.publish("jobs.x", {"bad": True}, key="k", headers={"trace": "t1"})
        boss.publish("jobs.x", "good", key="k")
        good: list[Any] = []
        deadline = time.monotonic() + 60
        while not good and time.monotonic() < deadline:
            for events in workers:
                event = events.get(0.02)
                if event is None:
                    continue
                if event.data == "good":
                    good.append(event)
                    events.ack(event)
                else:
                    events.nack(event, error=f"attempt {event.attempt} failed")
        assert good, "the event behind the poison is handled"
        boss.flush(30)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "meshmsg", "sub", "dead.workers", "--start", "earliest"),
                *("--connect", boss.address, "--count", "1", "--timeout", "10s", "--json"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        letter = json.loads(done.stdout)
        assert letter["topic"] == "dead.workers"
        assert letter["data"] == {"bad": True}
        assert letter["key"] == "k"
        headers = letter["headers"]
        assert headers["trace"] == "t1"
        assert headers["dead.attempts"] == 3
        assert len(headers["dead.members"]) == 3
        assert headers["dead.error"] == "attempt 3 failed"
        assert headers["dead.topic"] == "jobs.x"
        assert headers["dead.seq"] == position.seq
        (row,) = (r for r in boss.ledger().rows if r.subscription == "group workers")
        assert (row.delivered, row.dead, row.in_flight, row.reconciles) == (1, 1, 0, True)


def test_group_on_everything_does_not_eat_its_own_dead_letters() -> None:
    with (
        Peer("boss") as boss,
        Peer("worker", connect=boss.address) as worker,
        worker.subscribe("**", group="workers", max_attempts=1) as events,
        worker.subscribe("dead.*", group="undertakers") as letters,
    ):
        boss.publish("jobs.x", 0)  # declares the stream
        boss.wait_for_subscribers("jobs.x", timeout=30)
        wait_until(lambda: letters.stats()["sources"])
        boss.publish("jobs.x", 1)
        event = next(e for e in iter(lambda: events.get(5), None) if e.data in (0, 1))
        events.nack(event)
        letter = letters.get(30)
        assert letter is not None
        assert letter.headers["dead.attempts"] == 1
        letters.ack(letter)
        for other in iter(lambda: events.get(0.2), None):
            assert other.topic == "jobs.x"
            events.ack(other)


def test_dead_letter_whose_headers_would_be_too_large_has_its_history() -> None:
    with (
        Peer("boss") as boss,
        Peer("worker", connect=boss.address) as worker,
        worker.subscribe("jobs.**", group="workers", max_attempts=1) as events,
        worker.subscribe("dead.workers", start="earliest") as letters,
    ):
        boss.publish("jobs.y", 0)  # declares the stream
        boss.wait_for_subscribers("jobs.x", timeout=30)
        boss.publish("jobs.x", 1, headers={"large": "x" * 65_500})
        event = next(e for e in iter(lambda: events.get(10), None) if e.data == 1)
        assert len(event.headers["large"]) == 65_500
        events.nack(event)
        letter = letters.get(30)
        assert letter is not None
        assert (letter.data, letter.headers["dead.attempts"]) == (1, 1)
        assert "large" not in letter.headers


# Overload ----------------------------------------------------------------------------------------


def test_block_waits_for_a_group_that_has_no_credit() -> None:
    stream = {"overflow": "block", "window_bytes": "64KiB"}
    with mesh(stream=stream, prefetch=2) as (boss, events):
        with pytest.raises(PublishTimeout, match="group workers"):
            boss.publish_many("jobs.x", [bytes(1000)] * 1000, timeout=0.2)
        published = boss.stats()["streams"]["jobs.**"]["published"]
        got = 0
        while got < published:
            got += len(found := events.get_many(10, timeout=30))
            events.ack(found)
        boss.publish("jobs.x", b"on it goes", timeout=30)
        events.ack(take(events, 1))
        boss.flush(30)
        assert boss.ledger().lost == 0


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
def test_dropped_events_of_a_group_are_counted_and_told(overflow: str) -> None:
    stream = {"overflow": overflow, "buffer_bytes": "64KiB", "groups": "workers"}
    with (
        Peer(
            "boss", streams=[Stream("jobs.**", **stream)], tuning=Tuning(frame_bytes=8192)
        ) as boss,
        Peer("worker", connect=boss.address) as worker,
    ):
        for n in range(1000):
            boss.publish("jobs.x", n.to_bytes(2, "little") * 500)
        boss.flush(0.1)
        with worker.subscribe("jobs.**", group="workers") as events:
            got = 0
            while got + sum(group_of(boss)["lost"].values()) < 1000:
                found = events.get_many(64, timeout=0.1)
                got += len(found)
                events.ack(found)
            assert 0 < got < 1000
            wait_until(lambda: group_of(boss)["acked"] == got)
            (row,) = (r for r in boss.ledger().rows if r.subscription == "group workers")
            assert row.reconciles
            assert row.lost == {"overflow": 1000 - got}
            assert row.in_flight == 0


# Balance -----------------------------------------------------------------------------------------


def test_slow_worker_has_only_what_it_was_given_and_all_others_are_busy_to_the_end() -> None:
    jobs, prefetch = 600, 4
    with mesh(members=4, prefetch=prefetch) as (boss, *workers):
        done = [0] * 4
        others_are_through = threading.Event()

        def work(n: int) -> None:
            for event in workers[n]:
                if n == 3:
                    others_are_through.wait(60)
                workers[n].ack(event)
                done[n] += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        boss.publish_many("jobs.x", range(jobs))
        for thread in threads:
            thread.start()
        wait_until(lambda: group_of(boss)["acked"] == jobs - prefetch)
        assert done[3] == 0
        others_are_through.set()
        boss.flush(60)
        for events in workers:
            events.close()
        for thread in threads:
            thread.join(30)
    assert done[3] == prefetch
    assert sum(done) == jobs


def test_fan_in_of_many_publishers_to_one_worker() -> None:
    with ExitStack() as stack:
        worker = stack.enter_context(Peer("worker"))
        events = stack.enter_context(worker.subscribe("jobs.**", group="workers"))
        bosses = []
        for n in range(6):
            streams = [Stream("jobs.**", groups="workers")]
            boss = Peer(f"boss{n}", streams=streams, connect=worker.address)
            bosses.append(stack.enter_context(boss))
        for n, boss in enumerate(bosses):
            boss.publish_many("jobs.x", range(n * 500, n * 500 + 500))
        got: list[int] = []
        while len(got) < 3000:
            found = events.get_many(100, timeout=30)
            assert found, f"{len(got)} of 3000"
            got += [event.data for event in found]
            events.ack(found)
        assert sorted(got) == list(range(3000))
        for boss in bosses:
            boss.flush(30)
