"""Publishing from many threads and from event loops; opening, closing, leaving."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

import meshmsg
from meshmsg import AsyncPeer, AsyncSubscription, ClosedError, Peer, Stream
from meshmsg._peer import async_peer as _async_peer
from meshmsg._peer import node as _node
from meshmsg._receive import subscription as _subscription
from meshmsg._wire import control as c
from tests.support import processes
from tests.support.pairs import pair
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

THREADS = 8


@asynccontextmanager
async def async_pair() -> AsyncIterator[tuple[AsyncPeer, AsyncSubscription]]:
    """A pair for an event loop."""
    async with (
        AsyncPeer("pub", streams=[Stream("t.**")]) as pub,
        AsyncPeer("sub", connect=pub.address) as sub,
        sub.subscribe("t.*") as events,
    ):
        await pub.wait_for_subscribers("t.x", timeout=30)
        yield pub, events


def test_eight_threads_publish_and_each_keeps_its_order() -> None:
    each = 5000
    with pair(Stream("t.**"), "t.*", topic="t.x") as (pub, _, events):
        positions: dict[int, list[int]] = defaultdict(list)

        def work(number: int) -> None:
            for n in range(each):
                if n % 100 == 99:
                    last = pub.publish_many(f"t.{number}", [n] * 1)
                    assert last is not None
                    positions[number].append(last.seq)
                else:
                    positions[number].append(pub.publish(f"t.{number}", n).seq)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        got: dict[str, list[int]] = defaultdict(list)
        seqs: list[int] = []
        at: dict[tuple[str, int], int] = {}
        while len(seqs) < THREADS * each:
            for event in events.get_many(10_000, timeout=30):
                got[event.topic].append(event.data)
                seqs.append(event.seq)
                at[event.topic, event.data] = event.seq
        for thread in threads:
            thread.join()
        for number, own in positions.items():
            assert own == [at[f"t.{number}", n] for n in range(each)]
        assert seqs == list(range(THREADS * each))
        assert all(got[f"t.{n}"] == list(range(each)) for n in range(THREADS))
        assert pub.ledger().reconciles


def test_threads_that_share_a_subscription_take_each_event_once() -> None:
    total = 20_000
    with pair(Stream("t.**"), "t.*", topic="t.x") as (pub, _, events):
        taken: list[int] = []

        def by_event() -> None:
            while len(taken) < total:
                event = events.get(timeout=0.05)
                if event is not None:
                    taken.append(event.data)

        def by_batch() -> None:
            while len(taken) < total:
                for batch in events.batches(timeout=0.05):
                    taken.extend(batch.data)

        def by_list() -> None:
            while len(taken) < total:
                taken.extend(event.data for event in events.get_many(7, timeout=0.05))

        threads = [threading.Thread(target=f) for f in (by_event, by_event, by_batch, by_list)]
        for thread in threads:
            thread.start()
        for at in range(0, total, 50):
            pub.publish_many("t.x", list(range(at, at + 50)))
        for thread in threads:
            thread.join(30)
        assert sorted(taken) == list(range(total))
        assert pub.ledger().reconciles


@pytest.mark.parametrize("compiled", [True, False])
def test_what_was_taken_as_a_batch_does_not_come_again_in_the_loop(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_subscription, "COMPILED", compiled and _subscription.COMPILED)
    with pair(Stream("t.**"), "t.*", topic="t.x") as (pub, _, events):
        pub.publish_many("t.x", range(10))
        loop = iter(events)
        got = [next(loop).data, next(loop).data]
        got += next(events.batches(timeout=30)).data
        pub.publish_many("t.x", range(10, 20))
        got += [next(loop).data for _ in range(10)]
        assert got == list(range(20))


@pytest.mark.parametrize("compiled", [True, False])
def test_what_was_taken_as_a_batch_does_not_come_again_in_an_async_loop(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_async_peer, "COMPILED", compiled and _async_peer.COMPILED)

    async def main() -> list[int]:
        async with async_pair() as (pub, events):
            await pub.publish_many("t.x", range(10))
            loop = aiter(events)
            got = [(await anext(loop)).data, (await anext(loop)).data]
            got += (await anext(events.batches(timeout=30))).data
            await pub.publish_many("t.x", range(10, 20))
            return got + [(await anext(loop)).data for _ in range(10)]

    assert asyncio.run(asyncio.wait_for(main(), 30)) == list(range(20))


async def waiting(events: AsyncSubscription, count: int) -> None:
    """Until this many tasks wait for the next event."""
    while len(events._waiting) != count:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("leaves", ["takes one", "time is up", "cancelled"])
def test_one_consumer_of_several_in_a_loop_may_go(leaves: str) -> None:
    async def take(events: AsyncSubscription, count: int) -> list[int]:
        got: list[int] = []
        async for event in events:
            got.append(event.data)
            if len(got) == count:
                break
        return got

    async def main() -> list[int]:
        async with async_pair() as (pub, events):
            stays = asyncio.create_task(take(events, 4 if leaves == "takes one" else 5))
            await waiting(events, 1)
            if leaves == "time is up":
                assert await events.get(timeout=0.05) is None
            else:
                goes = asyncio.create_task(take(events, 1))
                await waiting(events, 2)
            if leaves == "cancelled":
                goes.cancel()
                await waiting(events, 1)
            for n in range(5):
                await pub.publish("t.x", n)
                await asyncio.sleep(0.02)
            return await stays + (await goes if leaves == "takes one" else [])

    assert sorted(asyncio.run(asyncio.wait_for(main(), 30))) == list(range(5))


def test_what_one_task_leaves_is_for_those_who_wait() -> None:
    """The descriptor says once that something is there, to whoever takes the first of it."""

    async def take(events: AsyncSubscription) -> list[int]:
        return [(await events.get()).data for _ in range(3)]  # type: ignore[union-attr]

    async def main() -> list[int]:
        async with async_pair() as (pub, events):
            waits = asyncio.create_task(take(events))
            await waiting(events, 1)
            for n in range(4):
                await pub.publish("t.x", n)
                time.sleep(0.05)  # nobody is told what comes meanwhile
            others, events._yielded_at = events._waiting, time.monotonic()
            first = await events.get()
            assert first is not None
            assert all(woken.done() for woken in others), "they would wait for their timers"
            return [first.data, *await waits]

    assert asyncio.run(asyncio.wait_for(main(), 20)) == list(range(4))


def test_get_many_gives_what_it_has_while_another_thread_waits_for_more() -> None:
    with pair(Stream("t.**"), "t.*", topic="t.x") as (pub, _, events):
        pub.publish_many("t.x", range(3))
        assert events.get(timeout=30).data == 0  # type: ignore[union-attr]
        held, enough = threading.Event(), threading.Event()

        def wait_inside() -> None:
            with events._intake.lock:
                held.set()
                enough.wait(30)

        other = threading.Thread(target=wait_inside)
        other.start()
        held.wait(30)
        assert [event.data for event in events.get_many(10, timeout=30)] == [1, 2]
        assert other.is_alive(), "it waited for the other one"
        enough.set()
        other.join()


def test_sync_peer_publishes_from_an_event_loop() -> None:
    with pair(Stream("t.**"), "t.*", topic="t.x") as (pub, _, events):

        async def publish(number: int) -> None:
            for n in range(500):
                pub.publish(f"t.{number}", n)
                await asyncio.sleep(0)

        async def main() -> None:
            await asyncio.gather(*(publish(n) for n in range(4)))

        asyncio.run(main())
        got: dict[str, list[int]] = defaultdict(list)
        for _ in range(2000):
            event = events.get(timeout=30)
            assert event is not None
            got[event.topic].append(event.data)
        assert all(got[f"t.{n}"] == list(range(500)) for n in range(4))


def test_async_peers_exchange_events_and_reconcile() -> None:
    async def main() -> None:
        async with (
            AsyncPeer("pub", streams=[Stream("t.**")]) as pub,
            AsyncPeer("sub", connect=pub.address) as sub,
            sub.subscribe("t.*") as events,
        ):
            await events.wait_for_publishers(timeout=30)
            await pub.wait_for_subscribers("t.x", count=1, timeout=30)

            async def publish() -> None:
                for n in range(5000):
                    await pub.publish("t.x", n, key=str(n))
                await pub.publish_many("t.x", list(range(5000, 20_000)))

            task = asyncio.create_task(publish())
            got = []
            async for event in events:
                got.append(event.data)
                if len(got) == 10_000:
                    break
            got += [event.data for event in await events.get_many(5, timeout=30)]
            async for batch in events.batches():
                got += batch.data
                if len(got) == 20_000:
                    break
            await task
            await pub.flush(timeout=30)
            assert got == list(range(20_000))
            assert await events.get(timeout=0.05) is None
            assert (await pub.ledger()).reconciles
            assert (await sub.ledger()).reconciles

    asyncio.run(main())


def test_async_publish_waits_for_a_blocked_stream_without_blocking_the_loop() -> None:
    async def main() -> None:
        stream = Stream("t.**", overflow="block", window_bytes="64KiB", buffer_bytes="1MB")
        tuning = meshmsg.Tuning(inbox_bytes_max=1000, queue_frames=4)
        async with (
            AsyncPeer("pub", streams=[stream]) as pub,
            AsyncPeer("sub", connect=pub.address, tuning=tuning) as sub,
            sub.subscribe("t.*") as events,
        ):
            await pub.wait_for_subscribers("t.x", count=1, timeout=30)

            async def fill() -> None:
                for _ in range(1000):
                    await pub.publish("t.x", bytes(1000), timeout=0.2)

            with pytest.raises(meshmsg.PublishTimeout, match="sub/-#"):
                await fill()
            beats = 0

            async def beat() -> None:
                nonlocal beats
                while True:
                    beats += 1
                    await asyncio.sleep(0.001)

            heart = asyncio.create_task(beat())
            blocked = asyncio.create_task(pub.publish("t.x", b"last"))
            while beats < 20:
                await asyncio.sleep(0.001)
            assert not blocked.done()
            got = []
            async for event in events:
                got.append(event)
                if event.data == b"last":
                    break
            await blocked
            heart.cancel()
            assert events.losses == []
            assert [event.seq for event in got] == list(range(len(got)))

    asyncio.run(main())


def test_nothing_runs_before_the_peer_is_entered() -> None:
    threads, files = threading.active_count(), _open_files()
    peer = Peer("quiet", streams=[Stream("a.**")], bind="tcp://127.0.0.1:*")
    asynchronous = AsyncPeer("quiet", streams=[Stream("a.**")], bind="tcp://127.0.0.1:*")
    assert (threading.active_count(), _open_files()) == (threads, files)
    with pytest.raises(meshmsg.ClosedError, match="use a with block"):
        peer.publish("a.b", 1)
    with pytest.raises(meshmsg.ClosedError):
        asynchronous.subscribe("a.b")


def test_closing_frees_everything_and_may_be_repeated() -> None:
    gc.collect()
    threads, files = threading.active_count(), _open_files()
    for _ in range(3):
        with Peer("pub", streams=[Stream("a.**")]) as pub, Peer("sub", connect=pub.address) as sub:
            events = sub.subscribe("a.**")
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish("a.b", 1)
            assert events.get(timeout=30) is not None
        sub.close()
        pub.close()
        events.close()
        with pytest.raises(meshmsg.ClosedError):
            events.get()
        with pytest.raises(meshmsg.ClosedError):
            pub.publish("a.b", 1)
        assert list(events) == []
    wait_until(lambda: (threading.active_count(), _open_files()) == (threads, files))


def test_close_hands_over_what_was_published() -> None:
    with RemotePeer("sub", bind="tcp://127.0.0.1:*") as sub:
        sub.run("events = peer.subscribe('a.**')")
        with Peer("pub", streams=[Stream("a.**")], connect=sub.address) as pub:
            pub.wait_for_subscribers("a.b", count=1, timeout=30)
            pub.publish_many("a.b", list(range(100_000)))
        # The publisher has gone, and nothing was lost with it.
        assert sub.eval("[e.data for e in (events.get(30) for _ in range(100_000))][-1]") == 99_999
        assert sub.eval("events.lost") == 0


def test_close_gives_up_on_a_stalled_subscriber_in_time_and_says_so() -> None:
    tuning = {"inbox_bytes_max": 1000, "queue_frames": 4, "repair_deadline_s": 1.0}
    with RemotePeer("sub", bind="tcp://127.0.0.1:*", tuning=tuning) as sub:
        sub.run("events = peer.subscribe('a.**')")
        pub = Peer(
            "pub", streams=[Stream("a.**", buffer_bytes="256MiB")], connect=sub.address
        ).open()
        pub.wait_for_subscribers("a.b", count=1, timeout=30)
        pub.publish_many("a.b", [bytes(10_000)] * 10_000)
        with pytest.warns(RuntimeWarning, match="before these had received everything: sub/-#"):
            pub.close(timeout=0.3)
        # What went with it is reported, not forgotten: at once if its good-bye got through.
        delivered = sub.eval("sum(1 for event in iter(lambda: events.get(5), None))")
        assert delivered + sub.eval("events.lost") == 10_000
        assert set(sub.eval("[x.reason for x in events.losses]")) <= {"gone", "deadline"}


def test_publisher_that_leaves_reads_until_its_good_bye_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its connection is reset, and where its streams end is lost with it."""
    for name in ("BYE_S", "LINGER_S"):
        monkeypatch.setattr(_node, name, 30.0)
    pub = Peer("pub", streams=[Stream("a.**")]).open()
    context: Any = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.RCVTIMEO, 10_000)
    stranger.connect(pub.address)
    stranger.send(c.encode_message(c.Hello("stranger", 99, "default")))
    assert isinstance(c.decode_message(stranger.recv()), c.Welcome)
    closing = threading.Thread(target=pub.close, kwargs={"timeout": 30})
    closing.start()
    assert isinstance(c.decode_message(stranger.recv()), c.Bye)
    for number in range(1000):
        stranger.send(c.encode_message(c.Ping(number)))
    closing.join(0.3)
    assert closing.is_alive()
    stranger.send(c.encode_message(c.Bye(99, [])))
    closing.join(30)
    assert not closing.is_alive()
    context.destroy(linger=0)


def test_subscriber_answers_a_good_bye() -> None:
    with (
        Peer("pub", streams=[Stream("a.**")], tuning=meshmsg.Tuning(peer_timeout_s=600)) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**"),
    ):
        pub.wait_for_subscribers("a.b", timeout=30)
        node = pub._node
        assert node is not None
        node.call(node.reception.leave)
        wait_until(lambda: not node.reception.clients)


def test_waiting_consumer_is_woken_when_its_peer_closes() -> None:
    with Peer("sub") as sub:
        events = sub.subscribe("a.**")
        ended: list[int] = []
        thread = threading.Thread(target=lambda: ended.append(sum(1 for _ in events)))
        thread.start()
        wait_until(lambda: events._intake.driven_at > 0)
        sub.close()
        thread.join(30)
        assert ended == [0]


async def iterate(events: AsyncSubscription) -> None:
    async for _ in events:
        pass


async def close_peer(peer: AsyncPeer) -> None:
    await peer.close()


async def end_io_thread(peer: AsyncPeer) -> None:
    def fail(*_: object) -> None:
        raise SystemExit("on purpose")

    node = peer._open_node()
    node._ticks = [fail]
    node.wake()


async def close_subscriptions(_: AsyncPeer, *every: AsyncSubscription) -> None:
    for events in every:
        events.close()


@pytest.mark.parametrize("group", [{}, {"group": "workers"}], ids=["alone", "group"])
@pytest.mark.parametrize("end", [close_peer, end_io_thread, close_subscriptions])
def test_waiting_coroutines_are_woken_at_the_end(end: Any, group: dict[str, str]) -> None:
    async def run() -> None:
        async with AsyncPeer("pub") as pub, AsyncPeer("sub", connect=pub.address) as sub:
            every = [sub.subscribe("a.**", **group) for _ in range(3)]
            one, two, three = every
            waits = [one.get(), two.get_many(5), iterate(three)]
            tasks = [asyncio.create_task(wait) for wait in waits]
            await until(lambda: all(events._waiting for events in every))
            await end(sub, *(every if end is close_subscriptions else ()))
            _, waiting = await asyncio.wait(tasks, timeout=60)
            assert not waiting
            got, got_many, iterated = [task.exception() for task in tasks]
            assert isinstance(got, ClosedError)
            assert isinstance(got_many, ClosedError)
            assert isinstance(iterated, ClosedError) is (end is end_io_thread)

    asyncio.run(run())


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, in a loop."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


def test_unclosed_peer_warns() -> None:
    def forget() -> None:
        Peer("forgotten").open()
        gc.collect()

    with pytest.warns(ResourceWarning, match="'forgotten' was not closed"):
        forget()


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("again", range(3))
def test_process_ends_by_itself_after_ctrl_c(way: str, again: int) -> None:
    process = processes.start(
        processes.program("interrupted_reader", way), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert b"KeyboardInterrupt" in errors


def test_process_that_never_closes_its_peer_still_ends() -> None:
    done = subprocess.run(processes.program("unclosed"), timeout=30, check=False)
    assert done.returncode == 0


def test_idle_event_is_sent_at_once_by_the_caller() -> None:
    with pair() as (pub, _, events):
        sender = pub._open_node().publisher._routes["a.b"].sender
        for n in range(20):
            wait_until(lambda: sender.heartbeat_due() != 0)
            time.sleep(0.001)  # idle, as the test wants it
            pub.publish("a.b", n)
            assert sender.open_events == 0, "it did not wait for anything"
            assert events.get(timeout=30) is not None


def test_frames_fill_under_load() -> None:
    with Peer("pub", streams=[Stream("a.**", overflow="drop_oldest")]) as pub:
        for _ in range(100_000):
            pub.publish("a.b", b"x" * 64)
        pub.flush()
        frames = pub.stats()["streams"]["a.**"]["frames"]
        assert 100_000 / frames > 50, f"{frames} frames"


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
