"""A member of a work group in another peer, as a publisher knows it."""

from __future__ import annotations

from meshmsg._groups.seat import Seat
from meshmsg._model.topics import TopicFilter
from meshmsg._wire.control import Join
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.transports.zmq.work_queue import WorkOutlet


class RemoteMember:
    """A member of a group in another peer, as the publisher knows it."""

    def __init__(self, join: Join, link: bytes, peer: str, work: WorkOutlet, now: float) -> None:
        self.sub = join.sub
        self.group = join.group
        self.ticket = join.ticket  #: its work begins with this
        self.link = link
        self.peer = peer
        self.owner = Owner("", link)  #: whose places it takes
        self.label = f"{peer}/{join.name or '-'}#{join.sub & 0xFFFFFF:06x}"
        self.filter = TopicFilter(join.patterns)
        self.prefetch = join.prefetch
        self.ack_timeout_s = join.ack_timeout_s
        self.work = work
        self.seats: dict[str, Seat] = {}
        self.joined_at = now
        self.lost_at: float | None = None
        self.last_look = False  #: its time is up; what has come by now is read first
