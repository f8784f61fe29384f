"""What one process of a measurement is asked to do, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field

PUBLISH = "publish"
RECEIVE = "receive"
PING = "ping"
ECHO = "echo"

#: Told by a process when it is connected and waits, and to the one that starts: it may.
READY = "ready"
GO = "go"
REPORT = "report"

TOPIC = "bench.events"
PONG = "pong.events"
#: Distinct payloads that a publisher sends over and over; also what goes into one `publish_many`.
POOL_EVENTS = 1000
#: And of large ones, which would not fit into a cache anyway.
LARGE_BYTES = 16_384
LARGE_POOL_EVENTS = 100
STAMP_BYTES = 8
#: No process outlives this, whatever happens.
LIMIT_S = 400


@dataclass(frozen=True, slots=True)
class Task:
    """One process of a measurement."""

    role: str
    """`publish`, `receive`, `ping` or `echo`."""
    way: str
    """A key of `way.WAYS`."""
    size_bytes: int
    count: int
    """Events in all; a multiple of `POOL_EVENTS` where they are sent as fast as it goes."""
    warm_up: int = 0
    """Of them, how many are left out of the latencies."""
    subscribers: int = 1
    rate: int = 0
    """Events a second; 0: as fast as it goes."""
    batches: bool = False
    sampled: bool = False
    """Whether to say where the time went."""
    core: int | None = None
    """The processor that all threads of the process stay on; `None`: any."""
    port: int = 0
    """A free one, for whoever needs one, or port of a group; the next three are ours, too."""
    loss: float = 0.0
    """Multicast: of the packets, the part that a receiver drops."""
    parity: str = ""
    """Multicast: forward error correction."""
    streams: int = 1
    """Streams of the publisher, used in turn."""
    topics: int = 1
    """Topics of the stream, used in turn."""
    sealed: bool = False
    """Multicast: whether packets are sealed."""
    take: str = ""
    """Round trips: the verb by which events are taken."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Sent instead of an answer: the traceback."""

    text: str


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """What one thread used of the processor, and how long it was ready to run and did not."""

    name: str
    cpu_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class Samples:
    """Where the main thread was, looked at again and again."""

    lines: dict[tuple[str, int, str], int]
    """File, line and function: how often it was there."""
    seconds: float

    @property
    def count(self) -> int:
        """How often it was looked at."""
        return sum(self.lines.values())


@dataclass(slots=True)
class Report:
    """The answer of one process."""

    events: int = 0
    """Sent or received."""
    first: int = 0
    """Of them, how many were there when the clock began."""
    began_ns: int = 0
    ended_ns: int = 0
    cpu_s: float = 0.0
    """User and system time of the whole process while it measured."""
    frames: int = 0
    """Frames that the events were sent in; 0 where there are none."""
    timed: int = 0
    """Of the events, those until the clock ended; 0: all."""
    lost: int = 0
    """Events that a way lost that is allowed to."""
    notes: dict[str, int] = field(default_factory=dict)
    """Figures worth a look."""
    problems: list[str] = field(default_factory=list)
    """What is wrong with the accounts, in words."""
    times_ns: list[int] = field(default_factory=list)
    """Latencies, where these are measured."""
    threads: list[ThreadTime] = field(default_factory=list)
    samples: Samples | None = None


def payloads(size_bytes: int) -> list[bytes]:
    """What publishers send: distinct, so that no way gains from one that stays in the cache."""
    count = LARGE_POOL_EVENTS if size_bytes >= LARGE_BYTES else POOL_EVENTS
    return [n.to_bytes(size_bytes, "little") for n in range(count)]


def taken(events: int, first: int, began_ns: int, ended_ns: int, octets: int, task: Task) -> Report:
    """What a receiver has to say, with what does not add up."""
    report = Report(events=events, first=first, began_ns=began_ns, ended_ns=ended_ns)
    if events != task.count:
        report.problems.append(f"{events:,} events received of {task.count:,}")
    if octets != task.count * task.size_bytes:
        report.problems.append(f"{octets:,} bytes received of {task.count * task.size_bytes:,}")
    return report


def latencies(times_ns: list[int], task: Task) -> Report:
    """What a process has to say that took times."""
    return Report(events=len(times_ns), times_ns=times_ns[task.warm_up :])
