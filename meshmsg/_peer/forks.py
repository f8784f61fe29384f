"""After a fork: the child has copies of its parent's peers, and none of their threads.

A copy that went on would give numbers to events that the parent gives to others, write to the same
places in the same log, and wait for locks whose owners do not exist in the child.  So the parts of
an open peer that users' objects lead to change their class in the child, before other code runs:
the node, the publishing side, the subscriptions, and what watches presence.  Whatever is asked of
one then raises `ForkedError`.  Publishing and receiving look at nothing for that.

What they hold stays as it is and is never freed: to close a socket is the parent's to do.  The
descriptors that would be in the way of the parent's next start are closed where they are opened:
those of logs in `recovery.log.files`, those of ZeroMQ in `transports.inherited`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from meshmsg._model.config import PeerConfig
from meshmsg._model.errors import ClosedError, ForkedError


class Forked(Protocol):
    """What a child of a fork gets a copy of: the node of a peer."""

    config: PeerConfig

    def forked_parts(self) -> list[object]:
        """All that users' objects lead to."""


_nodes: WeakSet[Forked] = WeakSet()
_kept: list[object] = []
_pid = os.getpid()


def _ask(part: object, name: str) -> Any:
    if name == "__class__":  # which `isinstance` asks for
        return type(part)
    raise _error_of[type(part)]()


def _refuse(part: object, *_: object) -> None:
    raise _error_of[type(part)]()


#: What a part becomes: whatever is asked of it raises.
_FORKED = {
    "__getattribute__": _ask,
    "__setattr__": _refuse,
    "__enter__": _refuse,
    "__exit__": _refuse,
}
#: What the parts of each such class raise.
_error_of: WeakKeyDictionary[type, Callable[[], Exception]] = WeakKeyDictionary()


def own(node: Forked) -> None:
    """Keep the node of a peer from children that are forked from now on."""
    _nodes.add(node)


def is_forked(part: object) -> bool:
    """Return True for a part of a peer that another process has opened, or that was killed."""
    return type(part) in _error_of


def bury(name: str) -> None:
    """The peers of this name were killed in a simulated mesh: users' objects of them say so."""
    for node in [node for node in _nodes if node.config.name == name]:
        _nodes.discard(node)
        for part in node.forked_parts():
            _disown(part, lambda: ClosedError(f"the peer {name!r} was killed"))


def _disown(part: Any, error: Callable[[], Exception]) -> None:
    kind = type(part)
    forked = type(kind.__name__, (kind,), dict(_FORKED))
    _error_of[forked] = error
    part.__class__ = forked


def _after_fork() -> None:
    """Run in the child, whose only thread is the one that forked."""
    global _pid
    owner, _pid = _pid, os.getpid()
    for node in list(_nodes):
        for part in node.forked_parts():
            _disown(part, lambda: ForkedError(owner))
            _kept.append(part)
    _nodes.clear()


os.register_at_fork(after_in_child=_after_fork)
