"""Groups of a stream by themselves: their seats, with a log and without, and frames of events."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from meshmsg import PeerConfig, Stream
from meshmsg._groups.group_messages import takes_all_of
from meshmsg._groups.seat import Seat
from meshmsg._publish.durable_streams import DurableSide
from meshmsg._publish.published_stream import Outlet
from meshmsg._publish.streams import Streams
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line, Shelf
from meshmsg.recovery.groups.policy import GroupPolicy
from tests.support.publishing import CLOCK_US, MESH
from tests.support.wire import Wire

WIRE_ID = 5
EPOCH = 3


def frame_of(count: int, first: int = 0, *, epoch: int = EPOCH, wire_id: int = WIRE_ID) -> Frame:
    """Events of the topic `t`; each has its number as payload."""
    payloads = [b"%d" % seq for seq in range(first, first + count)]
    return Frame(encode_frame(wire_id, epoch, first, "t", payloads, 1))


def seat_of(
    outlet: Outlet, name: str = "g", line: Line | None = None, start: int = 0, **policy: Any
) -> Seat:
    """A group on a stream."""
    agreed = GroupPolicy(**policy)
    durable = outlet.log is not None
    line = Line(outlet.epoch) if line is None else line
    shelf = Shelf(outlet.sender.buffer, line, durable=durable)
    claim = outlet.sender.flow.admit(-1, f"group {name}", start, agreed.patterns, now=0.0)
    takes_all = takes_all_of(agreed, outlet.config.topics)
    group = WorkGroup(name, outlet.sender.buffer, start, agreed, takes_all=takes_all, shelf=shelf)
    if durable:
        group.limit = start
        outlet.sender.flow.let_go(claim, now=0.0)
    return Seat(outlet, group, claim, declared=False)


def deal(seat: Seat, now: float = 0.0) -> list[tuple[int, int]]:
    """Deal out what there is: member and number of each event."""
    dealt = []
    for member, work in seat.group.dispatch(seat.outlet.sender.sealed, now=now):
        first = Frame(work.data).first
        places = range(work.lo, work.hi) if work.chosen is None else work.chosen
        dealt += [(member, first + place) for place in places]
    return dealt


class Disk:
    """Durable streams of one start of a peer, without its publisher."""

    def __init__(self, data_dir: Path, clock_us: int = CLOCK_US) -> None:
        self.config = PeerConfig("pub", mesh=MESH, data_dir=str(data_dir))
        self.clock_us = clock_us
        self.streams = Streams("pub")
        self.wire = Wire()
        self.woken = 0
        self.durable = DurableSide(
            self.config, self.streams, self.wire.sender, self._wake, lambda outlet: None
        )

    def _wake(self) -> None:
        self.woken += 1

    def __enter__(self) -> Disk:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.durable.close()

    def open(self, stream: Stream) -> Outlet:
        name = f"pub/{stream.label}"
        log = self.durable.open_log(stream, name, self.clock_us)
        wire_id = stream_wire_id(MESH, name)
        outlet = Outlet(stream, name, wire_id, log.epoch, self.config.tuning, log)
        self.streams.outlets[name] = outlet
        return outlet
