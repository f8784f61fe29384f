"""What the peers of a test were like when it failed: links, streams, subscriptions, counters.

The blocks that opened them close them before pytest hears of the failure.  So the first of them
that an error leaves asks all for their figures, and `conftest.py` puts the answers into the report.
"""

from __future__ import annotations

import pprint
import threading
import weakref
from collections.abc import Callable
from typing import Any

from meshmsg import AsyncPeer, ClosedError, Peer

#: A peer that hangs is part of what is to be explained.
ANSWER_S = 5.0

#: Those that are open, and how each is asked.
_open: weakref.WeakKeyDictionary[Any, Callable[[Any], Any]] = weakref.WeakKeyDictionary()


def watch(peer: Any, stats: Callable[[Any], Any]) -> None:
    """Ask this one, too, when a test fails."""
    _open[peer] = stats


def forget(peer: Any) -> None:
    """It is closed."""
    _open.pop(peer, None)


def leave(error: BaseException | None) -> None:
    """A block is left; if by an error, the test may be about to fail, and the error says how."""
    if error is not None and not hasattr(error, "peers"):
        error.peers = _ask_all()  # type: ignore[attr-defined]


def figures(error: BaseException) -> str:
    """What the peers said when this error came up, or say now."""
    said: str = getattr(error, "peers", None) or _ask_all()
    return said


def begin() -> None:
    """Another test: what was left open before has nothing to do with it."""
    _open.clear()


def _ask_all() -> str:
    return "\n".join(filter(None, (_ask(*one) for one in list(_open.items()))))


def _ask(peer: Any, stats: Callable[[Any], Any]) -> str:
    said: list[str] = []

    def ask() -> None:
        try:
            said.append(pprint.pformat(stats(peer), width=160, compact=True))
        except ClosedError:
            said.append("")
        except BaseException as error:
            said.append(repr(error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    answer = said[0] if said else f"no answer in {ANSWER_S:g} s"
    return answer and f"{peer!r}\n{answer}"


def install() -> None:
    """Watch every peer that this process opens."""
    leave_block, leave_async = Peer.__exit__, AsyncPeer.__aexit__

    def watched(start: Callable[[Any], None]) -> Callable[[Any], None]:
        def watched_start(peer: Any) -> None:
            start(peer)
            watch(peer, lambda peer: peer.stats())

        return watched_start

    def watched_exit(peer: Peer, kind: Any, error: Any, trace: Any) -> None:
        leave(error)
        leave_block(peer, kind, error, trace)

    async def watched_async_exit(peer: AsyncPeer, kind: Any, error: Any, trace: Any) -> None:
        leave(error)
        await leave_async(peer, kind, error, trace)

    for kind in (Peer, AsyncPeer):
        kind._start = watched(kind._start)  # type: ignore[method-assign]
    Peer.__exit__ = watched_exit  # type: ignore[method-assign]
    AsyncPeer.__aexit__ = watched_async_exit  # type: ignore[method-assign]
