"""The one error tree of meshmsg.  What a caller did wrong and what a peer did wrong stay apart.

::

    MeshError
     |- ConfigError (ValueError)        the caller's: a field has a value that cannot be used
     |   |- TopicError                  a topic or a pattern that cannot be used
     |- EventTooLarge (ValueError)      the caller's: an event over the stream's limit
     |- NoStream (LookupError)          the caller's: no declared stream takes this topic
     |- ClosedError (RuntimeError)      the caller's: used before it was opened or after `close`
     |   |- ForkedError                 the caller's: used in a forked child of its process
     |- BindError (OSError)             an address could not be bound
     |- WaitTimeout (TimeoutError)      what was waited for did not come in time
     |   |- PublishTimeout              the stream stayed blocked by a slow subscriber
     |- NameInUse                       another peer has this one's name, so nobody takes its events
     |- PeerRefused                     the other side would not talk to us, or we not to it
     |- EventsLost                      events were declared lost, with `on_loss="raise"` (`event`)
     |- PayloadError (ValueError)       a payload cannot be encoded or decoded
     |- LogError (OSError)              a durable log could not be opened, written or made safe
     |   |- LogFull                     there is no space for a log; it goes on when there is
     |   |- LogLocked                   another process writes the log
     |- ReplayError                     a peer's log could not be read over the network
     |- ProtocolError                   the peer's: bytes that are not what the protocol says

A `ProtocolError` never leaves a running peer: what caused it is counted and dropped.
"""

from __future__ import annotations

from typing import Any


def _restore(
    kind: type[MeshError], args: tuple[object, ...], fields: dict[str, object]
) -> MeshError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


class MeshError(Exception):
    """Root of everything that meshmsg raises on purpose.

    From `publish_many`, `published` says how many events went out before it, and `last` is the
    `Position` of the last one of them.
    """

    published: int = 0
    last: Any = None

    def after(self, published: int, last: Any) -> None:
        """Say, in the text as well, what `publish_many` had published before."""
        self.published, self.last = published, last
        at = f", the last one at {last}" if last is not None else ""
        self.args = (f"{self} ({published:,} events of this call are published{at})",)

    def __reduce__(self) -> tuple[object, ...]:
        # The constructors take fields, `args` holds the text: an error that crosses a process
        # boundary (a pool, a Spark task) has to carry both.
        return _restore, (type(self), self.args, self.__dict__)


class ConfigError(MeshError, ValueError):
    """A setting or argument that cannot be used; `field` names it, `problem` says what is right."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class TopicError(ConfigError):
    """A topic or a pattern that cannot be used."""


EVENT_BYTES_MAX = 16 * 1024 * 1024
"""The most that a stream's `event_bytes_max` may be: half of a frame."""


class EventTooLarge(MeshError, ValueError):
    """An event is larger than its stream takes."""

    def __init__(self, topic: str, size_bytes: int, max_bytes: int) -> None:
        if size_bytes <= EVENT_BYTES_MAX:
            advice = "raise the stream's event_bytes_max, or split the event"
        else:
            advice = (
                f"no stream takes more than {EVENT_BYTES_MAX:,}; split the event, or publish where "
                f"its data can be fetched"
            )
        super().__init__(
            f"an event for {topic!r} has {size_bytes:,} bytes and its stream takes at most "
            f"{max_bytes:,}: {advice}"
        )
        self.topic = topic
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes


class NoStream(MeshError, LookupError):
    """No stream that this peer declares takes the topic."""

    def __init__(self, topic: str, declared: list[str]) -> None:
        super().__init__(
            f"no stream of this peer takes topic {topic!r} (declared: {', '.join(declared)}): "
            f"add Stream({topic!r}) or a wider pattern to streams="
        )
        self.topic = topic
        self.declared = declared


class ClosedError(MeshError, RuntimeError):
    """A peer or subscription was used before it was opened or after it was closed."""


class ForkedError(ClosedError):
    """A peer or subscription was used in a forked child: `pid` is the process that opened it."""

    def __init__(self, pid: int) -> None:
        super().__init__(
            f"process {pid} opened this peer, and this process was forked from it: open a peer of "
            "its own here, after the fork (see docs/processes.md)"
        )
        self.pid = pid


class BindError(MeshError, OSError):
    """An address could not be bound."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"bind {address!r}: {reason}")
        self.address = address
        self.reason = reason


class WaitTimeout(MeshError, TimeoutError):
    """What was waited for did not come within the time given; the text says what was missing."""


class PublishTimeout(WaitTimeout):
    """The stream stayed blocked: `subscribers` names those that were behind."""

    def __init__(self, stream: str, timeout: float, subscribers: list[str]) -> None:
        super().__init__(
            f"{stream} stayed blocked for {timeout:g} s by {', '.join(subscribers) or 'nobody'}: "
            f"read faster there, set evict_after, or choose another overflow word"
        )
        self.stream = stream
        self.subscribers = subscribers


class NameInUse(MeshError):
    """Another peer has the name of this one and was first: nobody takes what this one publishes.

    `publish` raises it until the other one has gone.
    """

    def __init__(self, stream: str, address: str) -> None:
        name = stream.partition("/")[0]
        super().__init__(
            f"another peer named {name!r} is at {address}, and subscribers take {stream!r} from "
            f"it: give this peer another name, or stop the other one"
        )
        self.stream = stream
        self.address = address


class PeerRefused(MeshError):
    """Two peers will not talk: another protocol version, another mesh, or a name in use twice."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class PayloadError(MeshError, ValueError):
    """A payload could not be encoded or decoded."""


class LogError(MeshError, OSError):
    """A durable log could not be opened, written or made safe; `path` and `problem` say which.

    What was acknowledged before is not touched, and what failed may be tried again.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class LogFull(LogError):
    """There is no space for a log: nothing was written, and it goes on when there is space."""


class LogLocked(LogError):
    """Another process writes the log: `pid` says which, 0 where it did not say."""

    def __init__(self, path: str, pid: int) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(path, f"{holder} writes this log, and there can be only one")
        self.pid = pid


class ReplayError(MeshError):
    """A read of a peer's log failed: nobody answers, it went away, or it says why not."""

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(f"{address}: {problem}")
        self.address = address
        self.problem = problem


class ProtocolError(MeshError):
    """Bytes from the network (or a log) that are not what the protocol says."""
