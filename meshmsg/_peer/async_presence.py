"""`AsyncPeerWatch`: changes of presence for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from types import TracebackType

from meshmsg._peer.presence import PeerChange, Watch


class AsyncPeerWatch(Watch):
    """`PeerWatch` for asyncio: `async for change in watch`."""

    _waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def add(self, change: PeerChange) -> bool:
        """`False` if the oldest had to go for it."""
        kept = super().add(change)
        self._wake()
        return kept

    def end(self) -> None:
        """No more changes will come."""
        super().end()
        self._wake()

    def _wake(self) -> None:
        waiting = self._waiting
        if waiting is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                waiting[0].call_soon_threadsafe(_resolve, waiting[1])

    async def __aenter__(self) -> AsyncPeerWatch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def get(self, timeout: float | None = None) -> PeerChange | None:
        """The next change; `None` when the time is up, or the watch or its peer is closed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        loop = asyncio.get_running_loop()
        while True:
            woken = loop.create_future()
            self._waiting = (loop, woken)
            try:
                with self._ready:
                    if self._changes:
                        return self._changes.popleft()
                    if self.closed:
                        return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                await asyncio.wait([woken], timeout=left)
            finally:
                self._waiting = None

    async def __aiter__(self) -> AsyncIterator[PeerChange]:
        while (change := await self.get()) is not None:
            yield change


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
