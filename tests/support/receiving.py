"""A subscription that only a test drives: its real cores and socket, and what it asks for.

Streams, frames, admissions and links for it, as publishers and recorders would give them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from meshmsg._links.outbound_peer import Link
from meshmsg._model.config import Tuning
from meshmsg._model.topics import TopicFilter
from meshmsg._receive.incoming_stream import Attach, Source, StartAt
from meshmsg._receive.subscription_io import Intake
from meshmsg._wire.control import StreamInfo, Subscribed, stream_wire_id
from meshmsg._wire.frame import Frame, Heartbeat, encode_frame
from meshmsg._wire.packet import DATA, PacketBeat
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.fanout import FanoutClient, FanoutServer
from tests.support.packets import cut_frame

SUB, MESH, STREAM, EPOCH = 7, "default", "pub/a", 3


def info(name: str = STREAM, **fields: Any) -> StreamInfo:
    """A stream, as its publisher announces it."""
    given = {
        "topics": "a.**",
        "epoch": EPOCH,
        "overflow": "buffer",
        "codec": "msgpack",
        "window_bytes": 1 << 20,
    }
    return StreamInfo(name, **{**given, **fields})


def data(
    first: int, stop: int, *, epoch: int = EPOCH, name: str = STREAM, topic: Any = ""
) -> bytes:
    """Consecutive events, each the number that it has."""
    payloads = [msgspec.msgpack.encode(n) for n in range(first, stop)]
    wire_id = stream_wire_id(MESH, name)
    return encode_frame(wire_id, epoch, first, topic or "a.b", payloads, 1, raw=False)


def frame(first: int, stop: int, **fields: Any) -> Frame:
    return Frame(data(first, stop, **fields))


def beat(next_: int, *, epoch: int = EPOCH, name: str = STREAM) -> bytes:
    return Heartbeat(stream_wire_id(MESH, name), epoch, 0, next_).encode()


def packets(
    *frames: tuple[int, int],
    name: str = STREAM,
    epoch: int = EPOCH,
    number: int = 0,
    kind: int = DATA,
    payload_bytes: int = 1000,
) -> list[bytes]:
    """The packets of some frames, from packet `number` on: one each, unless they are cut finer."""
    made: list[bytes] = []
    for first, stop in frames:
        made += cut_frame(
            data(first, stop, epoch=epoch, name=name),
            stream=stream_wire_id(MESH, name),
            epoch=epoch,
            number=number + len(made),
            first=first,
            events=stop - first,
            payload_bytes=payload_bytes,
            kind=kind,
        )
    return made


def packet_beat(
    next_: int,
    next_event: int,
    *,
    first: int = 0,
    first_event: int = 0,
    receivers: int = 1,
    epoch: int = EPOCH,
    name: str = STREAM,
) -> bytes:
    wire_id = stream_wire_id(MESH, name)
    return PacketBeat(wire_id, epoch, next_, first, first_event, next_event, receivers, 0).encode()


def admission(
    start: int = 0, next_: int | None = None, *, epoch: int = EPOCH, name: str = STREAM, **more: Any
) -> Subscribed:
    """A publisher has events before `next_`, and those from `start` on are ours."""
    next_ = start if next_ is None else next_
    first = more.pop("first", min(start, next_))
    return Subscribed(SUB, name, epoch, 0, first, next_, start, **more)


def link(state: str = "up", address: str = "tcp://127.0.0.1:1", **fields: Any) -> Link:
    """A peer that was dialled, without a socket."""
    made = Link(address, None, given=True)  # type: ignore[arg-type]
    made.state = state
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class DataSocket(FanoutClient):
    """The subscription's own, which a test can wait for without any thread."""

    def await_message(self) -> None:
        assert self._socket.poll(10_000)


class Receiving:
    """One subscription, and what it has said."""

    def __init__(
        self, context: Context, kind: type[Intake], tuning: Tuning, start: StartAt
    ) -> None:
        self.posted: list[tuple[Any, Any]] = []
        self.reports = 0
        self.context = context
        self.client = DataSocket(context, 1000)
        self.intake = kind(
            SUB,
            TopicFilter(("a.**",)),
            self.client,
            tuning,
            MESH,
            lambda to, message: self.posted.append((to, message)),
            self._report,
            None,
            Any,
            start,
        )
        self._servers: list[FanoutServer] = []

    def _report(self, intake: Intake) -> None:
        self.reports += 1

    def source(self, name: str = STREAM, to: Link | None = None, **fields: Any) -> Source:
        """A stream that was announced over a link."""
        to = to or link()
        self.intake.notify(Attach(to, self.address, [info(name, **fields)]))
        self.intake.pump(0.0)
        return self.intake.incoming.by_name[name]

    @property
    def address(self) -> str:
        """Where frames come from: a publisher's data socket."""
        if not self._servers:
            server = FanoutServer(self.context, 1000)
            server.bind("tcp://127.0.0.1:*")
            self._servers.append(server)
        return self._servers[0].addresses[0][1]

    @property
    def server(self) -> FanoutServer:
        assert self.address
        return self._servers[0]

    def give(self, source: Source, first: int, stop: int, now: float = 0.0) -> None:
        """A frame of the epoch that is being received."""
        assert source.receiver is not None
        got = frame(first, stop, epoch=source.receiver.epoch, name=source.info.name)
        self.intake.ready.put(source, source.receiver.on_frame(got, now=now))

    def taken(self) -> list[Any]:
        """What the consumer gets now: ranges of events, and losses as they are."""
        found = []
        with self.intake.lock:
            while (one := self.intake.take(as_events=False)) is not None:
                found.append((one.epoch, one.first, one.stop) if hasattr(one, "payloads") else one)
        return found

    def asked(self, kind: type[Any]) -> list[Any]:
        """What was asked for, of one kind."""
        return [message for _, message in self.posted if isinstance(message, kind)]

    def close(self) -> None:
        self.intake.close()
        for server in self._servers:
            server.close(0.0)


@contextmanager
def receiving(
    start: StartAt | None = None, kind: type[Intake] = Intake, **tuning: Any
) -> Iterator[Receiving]:
    context = Context(None, 5.0)
    made = Receiving(context, kind, Tuning(**tuning), start or StartAt())
    try:
        yield made
    finally:
        made.close()
        context.close()
