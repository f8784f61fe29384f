"""A member of a work group with a real socket, and publishers that give it work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from meshmsg._groups.consumer import Member
from meshmsg._groups.consumer_messages import Asked, MemberOptions, MemberSetup
from meshmsg._links.outbound_peer import Link
from meshmsg._model.topics import TopicFilter
from meshmsg._receive.incoming_stream import StartAt
from meshmsg._wire.control import (
    Join,
    Joined,
    Settle,
    StreamInfo,
    Tail,
    decode_message,
    stream_wire_id,
)
from meshmsg._wire.subframe import Work, encode_work
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.work_queue import WorkInlet, WorkOutlet
from tests.support.grouping import EPOCH, frame_of
from tests.support.waiting import wait_until

MESH = "test"
SUB = 7
STREAM = "pub/a"

M = TypeVar("M")


class Giver:
    """A publisher that gives work to one member."""

    def __init__(self, world: MemberWorld, stream: str = STREAM, *, durable: bool = False) -> None:
        self.world = world
        self.info = StreamInfo(stream, "**", EPOCH, "block", "msgpack", 1, durable=durable)
        self.wire_id = stream_wire_id(MESH, stream)
        self.work = self._new_work()
        self.link = Link("tcp://127.0.0.1:1", cast("Any", None), given=True)
        self.link.state = "up"

    def ask(self, *, anew: bool = True, born: bool = False) -> Join:
        """The member hears of the stream, and asks to be taken."""
        names = {self.info.name} if born else set()
        self.world.member.notify(Asked(self.link, [self.info], "", names, anew))
        self.world.pump()
        if anew and self.work.connected:  # as a publisher does, which forgets the membership before
            self.work.close(0.0)
            self.work = self._new_work()
        return self.world.said(Join, self.link)[-1]

    def _new_work(self) -> WorkOutlet:
        return WorkOutlet(self.world.context, SUB, ["tcp://127.0.0.1:1"])

    def take(self, epoch: int = EPOCH) -> None:
        """Take the member, and see it connect."""
        tails = [Tail(self.info.name, epoch, 0, 0)]
        joined = Joined(SUB, tails, self.work.addresses)
        self.world.member.on_joined(self.link, joined, self.work.addresses[0][1])
        self.world.pump()
        if not self.work.connected:
            wait_until(lambda: any(self.work.monitor.read()))
            self.work.connected = True

    def join(self) -> Giver:
        self.ask()
        self.take()
        return self

    def send(
        self,
        count: int,
        first: int = 0,
        *,
        epoch: int = EPOCH,
        ticket: int | None = None,
        **work: Any,
    ) -> None:
        """Give the member events."""
        frame = frame_of(count, first, epoch=epoch, wire_id=self.wire_id)
        given = {"lo": 0, "hi": count, "chosen": None, "attempt": 1, **work}
        ticket = self.world.said(Join, self.link)[-1].ticket if ticket is None else ticket
        assert self.work.send(encode_work(ticket, Work(frame.data, **given)))

    def deal(self, count: int, first: int = 0, **more: Any) -> None:
        """Give it events, and see that it has read them."""
        self.world.see(lambda: self.send(count, first, **more))


class MemberWorld:
    """One member, and what it said."""

    def __init__(self, *, prefetch: int = 100, auto_ack: bool = False, order: str = "none") -> None:
        self.context = Context()
        options = MemberOptions("g", prefetch, 30.0, 5, order, auto_ack)
        setup = MemberSetup(SUB, TopicFilter(["**"]), options, MESH, None, None, StartAt())
        self.sent: list[tuple[Any, Any]] = []
        self.woken = 0
        self.member = Member(setup, WorkInlet(self.context, 1000), self._post, self._wake)
        self._givers: list[Giver] = []

    def _post(self, link: Any, message: Any) -> None:
        found = decode_message(message) if isinstance(message, bytes) else message
        self.sent.append((link, found))

    def _wake(self) -> None:
        self.woken += 1

    def giver(self, stream: str = STREAM, *, durable: bool = False) -> Giver:
        self._givers.append(Giver(self, stream, durable=durable))
        return self._givers[-1]

    def said(self, kind: type[M], link: Any = None) -> list[M]:
        sent = [message for to, message in self.sent if link is None or to is link]
        return [message for message in sent if isinstance(message, kind)]

    def acked(self) -> list[tuple[int, int, int]]:
        """All ranges that it has acknowledged."""
        said = [one for settle in self.said(Settle) for one in settle.settlements]
        return [ack for one in said for ack in one.acks]

    def pump(self) -> bool:
        with self.member.lock:
            return self.member.pump(time.monotonic(), read_ahead=True)

    def see(self, send: Callable[[], object]) -> None:
        """Have work sent, and see that it was read."""
        before = self._read()
        send()

        def was_read() -> bool:
            self.pump()
            return self._read() != before

        wait_until(was_read)

    def _read(self) -> tuple[int, ...]:
        counters = self.member.counters
        dropped = ("stray_work", "foreign_frames", "bad_messages", "io_errors")
        came = sum(source.received for source in self.member.sources())
        return (came, *(counters[name] for name in dropped))

    def events(self, count: int) -> list[int]:
        """Numbers of the next events, as the application gets them one by one."""
        found = []
        with self.member.lock:
            while len(found) < count:
                event = next(self.member.iterator, None)
                if event is None:
                    assert self.member.take(as_events=True) is not None, found
                    continue
                found.append(event.position.seq)
        return found

    def close(self) -> None:
        self.member.close()
        for giver in self._givers:
            giver.work.close(0.0)
        self.context.close()
