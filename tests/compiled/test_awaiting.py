"""What `AsyncPeer.publish` and `async for` hand out is a coroutine in every way that shows."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from meshmsg import AsyncPeer, ClosedError, ConfigError, Peer, PublishTimeout, Stream
from meshmsg._native import COMPILED

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="the compiled core is not in use (MESHMSG_PURE, or not built)"
)
if COMPILED:
    from meshmsg import _speed

A = Stream("a.**")


def run(test: Callable[[AsyncPeer], Awaitable[Any]]) -> None:
    async def main() -> None:
        async with AsyncPeer("pub", streams=[A]) as peer:
            await test(peer)

    asyncio.run(main())


def published(peer: AsyncPeer) -> int:
    count: int = peer.stats()["streams"]["a.**"]["published"]
    return count


def test_nothing_happens_before_it_is_awaited() -> None:
    async def test(peer: AsyncPeer) -> None:
        waiting = peer.publish("a.b", b"x")
        assert isinstance(waiting, _speed.Coroutine)
        assert isinstance(waiting, Coroutine)
        assert inspect.isawaitable(waiting)
        assert published(peer) == 0
        assert (await waiting).seq == 0
        with pytest.raises(RuntimeError, match="already awaited"):
            await waiting
        assert published(peer) == 1

    run(test)


def test_tasks_and_all_that_takes_coroutines_take_it() -> None:
    async def test(peer: AsyncPeer) -> None:
        assert (await asyncio.create_task(peer.publish("a.b", 0))).seq == 0
        assert (await asyncio.wait_for(peer.publish("a.b", 1), 5)).seq == 1
        assert (await asyncio.shield(peer.publish("a.b", 2))).seq == 2
        positions = await asyncio.gather(*(peer.publish("a.b", n) for n in range(3, 50)))
        assert [position.seq for position in positions] == list(range(3, 50))
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            tasks = [group.create_task(peer.publish("a.b", n, key="k")) for n in range(5)]
        assert [task.result().seq for task in tasks] == list(range(50, 55))
        assert "AsyncPeer.publish" in repr(asyncio.ensure_future(peer.publish("a.b", 1)))

    run(test)
    with Peer("other"):  # one that is run by itself
        peer = AsyncPeer("pub", streams=[A])
        peer._start()
        assert asyncio.run(peer.publish("a.b", 1)).seq == 0
        asyncio.run(peer.close())


def test_task_that_is_cancelled_before_it_ran_publishes_nothing() -> None:
    async def test(peer: AsyncPeer) -> None:
        task = asyncio.create_task(peer.publish("a.b", 0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert published(peer) == 0

    run(test)


def test_one_that_is_never_awaited_warns() -> None:
    async def test(peer: AsyncPeer) -> None:
        for _ in range(3):  # the same object is used again, and warns again
            with pytest.warns(RuntimeWarning, match=r"'AsyncPeer.publish' was never awaited"):
                peer.publish("a.b", b"x")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            closed = peer.publish("a.b", b"x")
            closed.close()
            del closed
            await peer.publish("a.b", b"x")
        assert published(peer) == 1

    run(test)


def test_send_throw_and_close_by_hand() -> None:
    async def test(peer: AsyncPeer) -> None:
        turn = peer.publish("a.b", b"x")
        with pytest.raises(TypeError, match="just-started"):
            turn.send(1)
        assert turn.send(None) is None, "the first of 4096 lets others run"
        with pytest.raises(StopIteration) as stop:
            turn.send(None)
        assert stop.value.value.seq == 0
        step = peer.publish("a.b", b"x")
        with pytest.raises(StopIteration):
            step.send(None)
        with pytest.raises(RuntimeError, match="already awaited"):
            step.send(None)
        step = peer.publish("a.b", b"x")
        with pytest.raises(KeyError):
            step.throw(KeyError("thrown"))
        with pytest.raises(RuntimeError):
            step.throw(KeyError)
        step = peer.publish("a.b", b"x")
        with pytest.raises(TypeError, match="exceptions must be"):
            step.throw("text")  # type: ignore[call-overload]
        step = peer.publish("a.b", b"x")
        step.close()
        step.close()
        assert step.cr_frame is None
        assert step.cr_await is None
        assert not step.cr_running
        assert published(peer) == 2

    run(test)


def test_mistakes_raise_when_awaited_and_wrong_calls_at_once() -> None:
    async def test(peer: AsyncPeer) -> None:
        waiting = peer.publish("a.b", b"x", key=5)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            await waiting
        wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((), {}),
            (("a.b",), {}),
            (("a.b", 1, 2), {}),
            (("a.b", 1), {"on_gate": print}),
        ]
        for arguments, named in wrong:
            with pytest.raises(TypeError):
                peer.publish(*arguments, **named)

    run(test)


def test_loop_that_only_publishes_lets_others_run() -> None:
    async def test(peer: AsyncPeer) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for n in range(20_000):
            assert (await peer.publish("a.b", b"x")).seq == n
        assert turns >= 4
        task.cancel()

    run(test)


def test_blocked_stream_is_waited_for_and_the_wait_can_be_given_up() -> None:
    blocked = Stream("a.**", overflow="block", window_bytes=20_000, buffer_bytes=100_000)

    async def fill(pub: AsyncPeer) -> None:
        for _ in range(1000):  # nobody reads
            await pub.publish("a.b", bytes(1000), timeout=0.2)

    async def main() -> None:
        async with (
            AsyncPeer("pub", streams=[blocked]) as pub,
            AsyncPeer("sub", connect=pub.address) as sub,
            sub.subscribe("a.**") as events,
        ):
            await pub.wait_for_subscribers("a.b", timeout=30)
            with pytest.raises(PublishTimeout):
                await fill(pub)
            sent = published(pub)
            task = asyncio.create_task(pub.publish("a.b", b"cancelled"))
            await asyncio.sleep(0.05)
            assert task.get_coro().cr_await is not None  # type: ignore[union-attr]
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            waiting = asyncio.create_task(pub.publish("a.b", b"last"))
            got = []
            while not got or got[-1] != b"last":
                event = await events.get(timeout=30)
                assert event is not None
                got.append(event.data)
            assert (await waiting).seq == sent == len(got) - 1
            assert b"cancelled" not in got

    asyncio.run(main())


def test_publishing_after_close_says_so() -> None:
    async def main() -> None:
        peer = AsyncPeer("pub", streams=[A])
        async with peer:
            publish = peer.publish
            await publish("a.b", 1)
            late = publish("a.b", 2)
        for waiting in (late, publish("a.b", 3), peer.publish("a.b", 4)):
            with pytest.raises(ClosedError):
                await waiting

    asyncio.run(main())


def test_publish_of_a_subclass_is_called() -> None:
    class Loud(AsyncPeer):
        async def publish(self, topic: str, data: Any, **named: Any) -> Any:
            return await super().publish(topic, data.upper(), **named)

    async def main() -> None:
        async with Loud("pub", streams=[A]) as peer, peer.subscribe("a.**") as events:
            assert inspect.iscoroutine(waiting := peer.publish("a.b", "text"))
            assert (await waiting).seq == 0
            assert events.lost == 0

    asyncio.run(main())


def test_async_for_takes_each_event_once_and_ends_with_the_subscription() -> None:
    async def main() -> None:
        async with (
            AsyncPeer("pub", streams=[A]) as pub,
            AsyncPeer("sub", connect=pub.address) as sub,
        ):
            events = sub.subscribe("a.**")
            await pub.wait_for_subscribers("a.b", timeout=30)
            await pub.publish_many("a.b", list(range(1000)))
            got = []
            async for event in events:
                got.append(event.data)
                if len(got) == 600:
                    break
            each = aiter(events)
            assert aiter(each) is each
            got.append((await anext(each)).data)
            early = anext(each)  # not awaited: it takes nothing
            early.close()  # type: ignore[attr-defined]
            task = asyncio.create_task(_next(each))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            got += [event.data for event in await events.get_many(398, timeout=30)]
            got.append((await asyncio.wait_for(anext(each), 5)).data)
            assert got == list(range(1000))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(each), 0.05)
            await pub.publish("a.b", "later")
            assert (await anext(each)).data == "later"
            waiting = asyncio.create_task(_next(each))
            await asyncio.sleep(0.05)
            events.close()
            with pytest.raises(StopAsyncIteration):
                await each.__anext__()
            assert await waiting is None
            assert [event async for event in events] == []

    async def _next(each: Any) -> Any:
        return await anext(each, None)

    asyncio.run(main())


def test_awaiting_leaves_nothing_behind() -> None:
    async def test(peer: AsyncPeer) -> None:
        topic, data = "a.b", b"payload"

        async def publish_all() -> None:
            for _ in range(300):
                await peer.publish(topic, data)
                peer.publish(topic, data, key="k").close()
                await asyncio.create_task(peer.publish(topic, data))
            await peer.flush()

        for _ in range(3):
            await publish_all()
        gc.collect()
        counts = [sys.getrefcount(value) for value in (topic, data)]
        before, frames = sys.getallocatedblocks(), peer.stats()["streams"]["a.**"]["frames"]
        for _ in range(10):
            await publish_all()
        gc.collect()
        frames = peer.stats()["streams"]["a.**"]["frames"] - frames
        assert [sys.getrefcount(value) for value in (topic, data)] == counts
        assert sys.getallocatedblocks() - before < 300 + 6 * frames

    run(test)
