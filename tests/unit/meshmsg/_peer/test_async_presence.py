"""Changes of presence for asyncio: the loop is woken from any thread, and never blocked."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from meshmsg._peer.async_presence import AsyncPeerWatch
from meshmsg._peer.presence import PresenceHub
from meshmsg.recovery.discovery.presence import Card


def hub() -> PresenceHub:
    return PresenceHub("me", Counter())


def watching(of: PresenceHub) -> AsyncPeerWatch:
    watch: AsyncPeerWatch = of.watch(AsyncPeerWatch)
    return watch


def test_change_of_another_thread_wakes_the_loop() -> None:
    told = hub()

    async def read() -> str:
        async with watching(told) as watch:
            task = asyncio.ensure_future(watch.get())
            await asyncio.sleep(0)
            threading.Thread(target=told.tell, args=("joined", Card("a", 1))).start()
            change = await asyncio.wait_for(task, 30)
            assert change is not None
            return change.peer.name

    assert asyncio.run(read()) == "a"


def test_iteration_ends_with_the_peer() -> None:
    told = hub()
    told.tell("joined", Card("a", 1))

    async def read() -> list[str]:
        found = []
        async for change in watching(told):
            found.append(change.kind)
            threading.Thread(target=told.close).start()
        return found

    assert asyncio.run(asyncio.wait_for(read(), 30)) == ["joined"]


def test_time_that_is_up_gives_nothing_and_what_is_there_comes_without_waiting() -> None:
    told = hub()

    async def read() -> None:
        async with watching(told) as watch:
            assert await watch.get(timeout=0) is None
            assert await watch.get(timeout=0.01) is None
            told.tell("joined", Card("a", 1))
            change = await watch.get(timeout=0)
            assert change is not None
            assert change.kind == "joined"
        assert watch.closed
        assert await watch.get() is None

    asyncio.run(read())


def test_reader_that_was_cancelled_loses_no_change() -> None:
    told = hub()

    async def read() -> None:
        watch = watching(told)
        task = asyncio.ensure_future(watch.get())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        told.tell("joined", Card("a", 1))
        assert await watch.get(timeout=0) is not None

    asyncio.run(read())


def test_change_after_the_loop_was_closed_is_kept() -> None:
    told = hub()
    watch = watching(told)

    async def begin() -> None:
        task = asyncio.ensure_future(watch.get())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(begin())
    told.tell("joined", Card("a", 1))

    async def read() -> bool:
        return await watch.get(timeout=0) is not None

    assert asyncio.run(read())
