"""The same verbs for asyncio: the loop is never blocked, and nothing that waits is left behind."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from meshmsg._model.config import Stream, Tuning
from meshmsg._model.errors import (
    ClosedError,
    ConfigError,
    EventTooLarge,
    NoStream,
    PublishTimeout,
    WaitTimeout,
)
from meshmsg._peer.async_peer import AsyncPeer, AsyncSubscription
from meshmsg._peer.peer import Peer, node_of

ROOM = 64 * 1024
PAYLOAD = b"x" * 4096


def run(main: Callable[[AsyncPeer, AsyncPeer], Coroutine[Any, Any, None]], **stream: Any) -> None:
    """A publisher and one that is connected to it."""

    async def both() -> None:
        tuning = Tuning(ping_interval_s=0.05)
        streams = [Stream("a.**", **stream)]
        async with (
            AsyncPeer("pub", streams=streams, tuning=tuning) as pub,
            AsyncPeer("sub", connect=pub.address, tuning=tuning) as sub,
        ):
            await main(pub, sub)

    asyncio.run(asyncio.wait_for(both(), 60))


async def subscribed(pub: AsyncPeer, sub: AsyncPeer, **more: Any) -> AsyncSubscription:
    events = sub.subscribe("a.**", **more)
    await pub.wait_for_subscribers("a.b", timeout=30)
    return events


VERBS: list[Callable[[AsyncPeer], Any]] = [
    lambda peer: peer.publish("a.b", 1),
    lambda peer: peer.publish_many("a.b", [1]),
    lambda peer: peer.flush(),
    lambda peer: peer.ledger(),
    lambda peer: peer.wait_for_subscribers("a.b"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_verb_of_a_peer_that_is_not_open_says_so(verb: Callable[[AsyncPeer], Any]) -> None:
    async def main() -> None:
        peer = AsyncPeer("me")
        with pytest.raises(ClosedError, match="not open"):
            await verb(peer)
        async with peer:
            pass
        with pytest.raises(ClosedError, match="closed"):
            await verb(peer)
        await peer.close()

    asyncio.run(main())


def test_event_after_event_batch_after_batch() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        async with await subscribed(pub, sub) as events:
            await pub.publish("a.b", 0)
            first = await events.get(timeout=30)
            assert first is not None
            assert first.data == 0
            assert await events.get(timeout=0) is None
            await pub.publish_many("a.b", range(1, 6))
            many = await events.get_many(max=3, timeout=30)
            assert [event.data for event in many] == [1, 2, 3]
            found: list[int] = []
            async for batch in events.batches(timeout=30):
                found += batch.data
                if len(found) == 2:
                    break
            assert found == [4, 5]
            with pytest.raises(ConfigError, match="max"):
                await events.get_many(max=0)

    run(main)


def test_loop_over_events_ends_with_the_subscription() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        events = await subscribed(pub, sub)
        await pub.publish_many("a.b", range(3))
        found = []
        async for event in events:
            found.append(event.data)
            if event.data == 2:
                events.close()
        assert found == [0, 1, 2]
        with pytest.raises(ClosedError):
            await events.get(timeout=0)
        with pytest.raises(ClosedError):
            async with events:
                pass

    run(main)


def test_waiting_reader_lets_the_loop_run_and_is_cancelled_cleanly() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        async with await subscribed(pub, sub) as events:
            task = asyncio.ensure_future(events.get())
            await asyncio.sleep(0.01)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await pub.publish("a.b", 7)
            event = await events.get(timeout=30)
            assert event is not None

    run(main)


class CountedSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Counts the turns of the loop that waits by it."""

    turns = 0

    def select(self, timeout: float | None = None) -> Any:
        self.turns += 1
        return super().select(timeout)


def test_event_for_a_task_that_waits_takes_one_turn_of_the_loop() -> None:
    count = 100
    selector, taken = CountedSelector(), threading.Semaphore(0)
    name: ContextVar[str] = ContextVar("name")

    def publish(pub: Peer) -> None:
        for number in range(count):
            assert taken.acquire(timeout=30)
            pub.publish("a.b", number)

    async def main(pub: Peer) -> None:
        async with (
            AsyncPeer("sub", connect=pub.address, discovery="none") as sub,
            sub.subscribe("a.**") as events,
        ):
            await asyncio.to_thread(pub.wait_for_subscribers, "a.b", timeout=30)
            publisher = threading.Thread(target=publish, args=(pub,))
            publisher.start()
            name.set("main")
            task, before = asyncio.current_task(), selector.turns
            for number in range(count):
                taken.release()
                event = await events.get(timeout=30)
                assert event is not None
                assert event.data == number
                assert (asyncio.current_task(), name.get()) == (task, "main")
            assert selector.turns - before < count * 1.5  # a ping takes one now and then
            publisher.join()

    with (
        Peer("pub", streams=Stream("a.**"), discovery="none") as pub,
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner,
    ):
        runner.run(main(pub))


@pytest.mark.parametrize("first", ["event", "cancel"])
def test_event_and_cancellation_at_once_lose_nothing(first: str) -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        async with await subscribed(pub, sub) as events:
            task = asyncio.ensure_future(events.get())
            await asyncio.sleep(0.01)
            if first == "cancel":
                task.cancel()
            await pub.publish("a.b", 7)
            await asyncio.to_thread(time.sleep, 0.01)
            if first == "event":
                task.cancel()
            found = await asyncio.gather(task, return_exceptions=True)
            if isinstance(found[0], asyncio.CancelledError):
                found = [await events.get(timeout=30)]
            assert getattr(found[0], "data", None) == 7

    run(main)


def test_events_that_were_published_in_one_task_wake_another() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        async with await subscribed(pub, sub) as events:

            async def read() -> list[int]:
                return [event.data for _ in range(3) if (event := await events.get(timeout=30))]

            task = asyncio.ensure_future(read())
            for number in range(3):
                await asyncio.sleep(0)
                await pub.publish("a.b", number)
            assert await task == [0, 1, 2]

    run(main)


def test_blocked_stream_holds_up_one_task_and_not_the_loop() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        async with await subscribed(pub, sub) as events:

            async def publish_until_it_blocks() -> None:
                while True:
                    await pub.publish("a.b", PAYLOAD, timeout=0.05)

            with pytest.raises(PublishTimeout, match="sub/"):
                await publish_until_it_blocks()
            task = asyncio.ensure_future(pub.publish("a.b", PAYLOAD))
            await asyncio.sleep(0.01)
            assert not task.done()
            while not task.done():
                await events.get_many(timeout=0.05)
            assert (await task).seq > 0

    run(main, overflow="block", window_bytes=ROOM)


def test_many_events_that_are_held_up_say_how_many_were_published() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        async with await subscribed(pub, sub):
            with pytest.raises(PublishTimeout) as caught:
                await pub.publish_many("a.b", [PAYLOAD] * 1000, timeout=0.05)
            assert 0 < caught.value.published < 1000
            assert caught.value.last is not None
            assert caught.value.last.seq == caught.value.published - 1

    run(main, overflow="block", window_bytes=ROOM)


def test_errors_of_publishing_are_raised_to_the_task() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        with pytest.raises(NoStream):
            await pub.publish("b.c", 1)
        with pytest.raises(NoStream):
            await pub.publish_many("b.c", [1])
        with pytest.raises(EventTooLarge):
            await pub.publish("a.b", b"x" * 2000)
        position = await pub.publish("a.b", 1, key="k", headers={"n": 1})
        assert position.seq == 0

    run(main, event_bytes_max=1000)


def test_flush_waits_for_those_who_have_not_received_everything() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        async with await subscribed(pub, sub) as events:
            await pub.publish_many("a.b", range(10))
            while len(await events.get_many(timeout=0.05)):
                pass
            await pub.flush(timeout=30)
            assert (await pub.ledger()).reconciles

    run(main)


def test_time_that_is_up_says_what_was_waited_for() -> None:
    async def main(pub: AsyncPeer, sub: AsyncPeer) -> None:
        with pytest.raises(WaitTimeout, match="0 of 1 subscribers"):
            await pub.wait_for_subscribers("a.b", timeout=0)
        events = sub.subscribe("z.**")
        with pytest.raises(WaitTimeout, match="0 of 1 streams"):
            await events.wait_for_publishers(timeout=0)
        await events.__aexit__(None, None, None)
        events = sub.subscribe("a.**")
        await events.wait_for_publishers(timeout=30)
        events.close()

    run(main)


def test_durable_streams_are_written_beside_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        stream = Stream("a.**", durability="log", fsync="always")
        async with AsyncPeer("pub", streams=[stream], data_dir=tmp_path) as pub:
            positions = await asyncio.gather(*(pub.publish("a.b", n) for n in range(20)))
            assert sorted(one.seq for one in positions) == list(range(20))
            last = await pub.publish_many("a.b", range(5))
            assert last is not None
            assert last.seq == 24
            await pub.flush(timeout=30)

    asyncio.run(main())


def test_commit_keeps_the_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncPeer("sub", data_dir=tmp_path) as sub:
            events = sub.subscribe("a.**", start="committed", name="audit")
            await events.commit()
            events.close()
            with pytest.raises(ConfigError):
                await sub.subscribe("a.**").commit()

    asyncio.run(main())


def test_subclass_that_publishes_in_its_own_way_is_asked() -> None:
    class Loud(AsyncPeer):
        async def publish(self, topic: str, data: Any, **more: Any) -> Any:
            return (await super().publish(topic, data, **more)).seq

    async def main() -> None:
        async with Loud("me") as peer:
            assert await peer.publish("a.b", 1) == 0
            assert node_of(peer).publisher.infos()

    asyncio.run(main())
