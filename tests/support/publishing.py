"""The publishing side of a peer with real sockets and logs; a test takes the I/O thread's turns."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

import zmq

from meshmsg import PeerConfig, Stream
from meshmsg._model.config import Tuning
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.publisher import PublisherSide
from meshmsg._wire.control import (
    Figures,
    Start,
    StartKind,
    Status,
    Subscribe,
    stream_wire_id,
    subscription_token,
)
from meshmsg.transports.zmq.fanout import FanoutServer
from meshmsg.transports.zmq.sockets import ZmqSockets
from tests.support.waiting import wait_until
from tests.support.wire import Wire

MESH = "test"
CLOCK_US = 1_000_000


def outlet_of(stream: Stream, peer: str = "pub", **tuning: Any) -> Outlet:
    """A stream of a peer by itself, without a log."""
    name = f"{peer}/{stream.label}"
    return Outlet(stream, name, stream_wire_id(MESH, name), CLOCK_US, Tuning(**tuning))


def fill(outlet: Outlet, count: int, size: int = 10, now: float = 0.0) -> None:
    """Seal frames of one event each."""
    for _ in range(count):
        assert outlet.sender.seal_run("a", (bytes(size),), 1, raw=True, length=size, now=now)


class Publishing:
    """What `Peer` has of a publisher."""

    def __init__(
        self, *streams: Stream, data_dir: Path | None = None, name: str = "pub", **tuning: Any
    ) -> None:
        self.config = PeerConfig(
            name,
            streams=streams,
            mesh=MESH,
            data_dir=None if data_dir is None else str(data_dir),
            tuning=Tuning(**tuning),
        )
        self.wire = Wire()
        self.woken = self.announced = 0
        self.context = ZmqSockets()
        self.side = PublisherSide(
            self.config, CLOCK_US, self.wire.sender, self._wake, self._announce
        )
        self.fanout = FanoutServer(self.context, self.config.tuning.queue_frames)
        self._outside: zmq.Context[Any] = zmq.Context()
        self._sockets: dict[int, Any] = {}
        self._monitors: list[Any] = []
        self._closed = False

    def _wake(self) -> None:
        self.woken += 1

    def _announce(self) -> None:
        self.announced += 1

    def __enter__(self) -> Publishing:
        self.fanout.bind("tcp://127.0.0.1:*")
        self.side.groups.open(
            self.context, ["tcp://127.0.0.1:1"], self._monitors.append, self._monitors.remove
        )
        self.side.open(self.fanout)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.side.finish()
            self.side.close(0.0)
            self._outside.destroy(linger=0)
            self.context.close()

    def outlet(self, topic: str) -> Outlet:
        return self.side.find(topic)

    def request(
        self,
        sub: int,
        kind: StartKind = "live",
        value: int = 0,
        epoch: int = 0,
        streams: tuple[str, ...] | None = None,
        **fields: Any,
    ) -> Subscribe:
        """What a subscription asks for: all streams, or those named."""
        names = list(self.side.outlets()) if streams is None else []
        asked = [outlet.stream for outlet in names] or list(streams or ())
        starts = [Start(stream, kind, value, epoch) for stream in asked]
        return Subscribe(sub, ["**"], starts, **fields)

    def attach(self, sub: int, *topics: str) -> Any:
        """The data connection of a subscription, seen by the publisher; it takes these streams."""
        if sub in self._sockets:
            return self._sockets[sub]
        socket = self._sockets[sub] = self._outside.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        for topic in topics:
            wire_id = stream_wire_id(MESH, self.outlet(topic).stream)
            socket.subscribe(wire_id.to_bytes(8, "little"))
        socket.subscribe(subscription_token(sub))
        socket.connect(self.fanout.addresses[0][1])
        wait_until(lambda: self.turn() and sub in self.side.subscribers.tokens)
        return socket

    def detach(self, sub: int) -> None:
        """Its data connection ends, and the publisher sees it."""
        self._sockets.pop(sub).close()
        wait_until(lambda: self.turn() and sub not in self.side.subscribers.tokens)

    def subscribe(self, sub: int, link: bytes = b"desk", **asked: Any) -> None:
        """A subscription comes, and is taken."""
        request = self.request(sub, **asked)
        self.side.subscribers.on_subscribe(link, "desk", 7, request, time.monotonic())
        self.attach(sub)

    def report(self, sub: int, topic: str, upto: int, link: bytes = b"desk", **fields: Any) -> None:
        """A subscription says that it has taken everything of a stream up to there."""
        outlet = self.outlet(topic)
        figures = Figures(outlet.stream, outlet.epoch, 0, upto, upto, upto, 0, {})
        status = Status(sub, [figures], **fields)
        self.side.subscribers.on_status(link, status, time.monotonic())

    def turn(self, now: float | None = None) -> float:
        """A turn of the I/O thread."""
        now = time.monotonic() if now is None else now
        self.look(now)
        return self.side.on_tick(now)

    def look(self, now: float) -> None:
        """See which members have come and gone; nothing is done by the clock."""
        for monitor in list(self._monitors):
            assert self.side.groups.on_readable(monitor, now)
