"""Reading the packets of a subscription's multicast streams, and what they add up to.

A repair may complete many frames at once.  Those wait as packets, in the backlog, until there is
need of them.  Everything is called by whoever drives the subscription, with its lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from meshmsg._receive.incoming_stream import Source
from meshmsg._receive.incoming_streams import IncomingStreams
from meshmsg._receive.multicast_receiver import PacketSource
from meshmsg._receive.ready_queue import ReadyQueue
from meshmsg._runtime.guard import Guard
from meshmsg._wire.frame import Frame
from meshmsg._wire.packet import HEAD, PACKET_MAGIC, SEALED_MAGIC, STREAM_AT
from meshmsg.transports.udp.multicast import Datagram, Group, MulticastClient

log = logging.getLogger("meshmsg.peer")

READ_DATAGRAMS_MAX = 8
#: Read beside each batch that is handed over while more are ready.
KEEP_UP_DATAGRAMS = 3
#: Magic, kind, flags, place, stream and epoch: all that live first packets of a stream share.
SINGLE_PREFIX_BYTES = HEAD.size - 8
#: When so many packets of other streams came and none of a feed's, something may be misspelt.
OTHERS_TOLD = 5


class PacketReading:
    """The lines of one subscription: one socket a group, however many streams come by it."""

    def __init__(
        self,
        incoming: IncomingStreams,
        ready: ReadyQueue,
        guard: Guard,
        mesh: str,
        on_frame: Callable[[Source, Frame, float], None],
    ) -> None:
        self.lines: dict[Group, MulticastClient] = {}
        self.only_line: MulticastClient | None = None  #: where all streams come by one
        self.backlog: list[Source] = []  #: with frames that have yet to be put together
        self._incoming = incoming
        self._ready = ready
        self._guard = guard
        self._mesh = mesh
        self._on_frame = on_frame
        self._singles: dict[bytes, Source] = {}  # by how their live packets begin
        self._turn = 0  # which line is read first

    def find_only_line(self) -> None:
        """See whether all streams come by one line, and nothing by ZeroMQ's socket."""
        sources = self._incoming.by_name.values()
        one = len(self.lines) == 1 and all(s.packets is not None for s in sources)
        self.only_line = next(iter(self.lines.values())) if one else None

    def find_singles(self) -> None:
        """By what to know live packets of our streams that may be a frame each."""
        self._singles = {
            source.packets.receiver.single_prefix: source
            for source in self._incoming.by_name.values()
            if source.packets is not None
            and source.packets.receiver is not None
            and len(source.packets.lines) == 1
            and source.packets.seal is None
        }

    # --- packets ---

    def read(self, now: float, read_ahead: bool) -> bool:
        """Read multicast packets; returns whether none is left."""
        ready = self._ready
        drained = True
        lines = list(self.lines.values())
        self._turn += 1
        at = self._turn % len(lines)
        for line in lines[at:] + lines[:at]:
            for _ in range(READ_DATAGRAMS_MAX * (16 if read_ahead else 1)):
                if ready.room <= 0:
                    ready.full_at = now
                    return False
                if ready.items and not read_ahead:
                    return False
                datagram = line.recv()
                if datagram is None:
                    break
                self.on_datagram(line, datagram, now)
            else:
                drained = False
        return drained

    def keep_up(self, now: float) -> None:
        """Read on while much is ready, as after a repair: a kernel buffer fills quickly."""
        reads = KEEP_UP_DATAGRAMS if self._ready.room > 0 else 0  # what overruns it is little
        for line in list(self.lines.values()):
            for _ in range(reads):
                datagram = line.recv()
                if datagram is None:
                    break
                self.on_datagram(line, datagram, now)

    def single(self, datagram: Datagram) -> PacketSource | None:
        """Return whose frame is next and in a packet of its own, `None` for any other datagram."""
        data, packet_bytes, origin = datagram
        source = self._singles.get(data[:SINGLE_PREFIX_BYTES])
        if source is None or packet_bytes < len(data) or self._ready.items:
            return None
        packets, receiver = source.packets, source.receiver
        if packets is None or receiver is None:
            return None
        is_next = packets.is_single(data, origin, receiver.epoch, receiver.next)
        return packets if is_next else None

    def on_datagram(self, line: MulticastClient, datagram: Datagram, now: float) -> None:
        """Packets came by a line."""
        try:
            data = datagram.data
            if len(data) < HEAD.size or data[:4] not in (PACKET_MAGIC, SEALED_MAGIC):
                self._incoming.counters["bad_packets"] += bool(data)
                return
            wire_id = int.from_bytes(data[STREAM_AT : STREAM_AT + 8], "little")
            source = self._incoming.by_wire.get(wire_id)
            if source is None or source.packets is None:
                self._on_other_packet()
                return
            packets = source.packets
            if self.backlog:
                self._ready.backlog_bytes += len(data)
            for frame in packets.receive(line, datagram, now):
                self._on_frame(source, frame, now)
            self._after_packets(source, packets, now)
            packets.report(now, self._ready.room)
            self._incoming.wake_at(source, packets.deadline())
        except Exception:
            self._guard.failed("a packet")

    def run_timers(self, source: Source, packets: PacketSource, now: float) -> None:
        """Send what is due to the sender of a stream."""
        for frame in packets.on_deadline(now):
            self._on_frame(source, frame, now)
        self._after_packets(source, packets, now)
        packets.report(now, self._ready.room)

    def _on_other_packet(self) -> None:
        """Another stream shares the group."""
        counters = self._incoming.counters
        counters["other_packets"] += 1
        if counters["other_packets"] == OTHERS_TOLD:
            for problem in self.unheard():
                log.warning("%s", problem)

    def unheard(self) -> list[str]:
        """Feeds of which no packet has come, and what may be the matter, in words."""
        others, heard = self._incoming.counters["other_packets"], ""
        if others:
            heard = (
                f", but {others} packets of other streams were: the names of the publisher, of the "
                f"stream and of the mesh ({self._mesh!r}) have to be the same on both sides"
            )
        return [
            f"nothing was heard of {source.info.name} at {source.packets.info.group}{heard}"
            for source in list(self._incoming.by_name.values())
            if source.receiver is None and source.packets is not None and source.link is None
        ]

    def _after_packets(self, source: Source, packets: PacketSource, now: float) -> None:
        """What the packets say about the events' own numbers, and whether there are more."""
        if packets.more and source not in self.backlog:
            self.backlog.append(source)
            self._ready.backlog_bytes += packets.complete_bytes
            self.refill(now)
        receiver, below = source.receiver, packets.receiver
        if receiver is None or below is None or below.epoch != receiver.epoch:
            return
        if below.tail is not None:
            tail = below.take_tail(receiver.high)
            if source.link is not None:  # then its publisher says so by the control channel, too
                tail = min(tail, source.heard_next)
            source.heard_next = max(source.heard_next, tail)
            receiver.on_tail(tail, now=now)
        if receiver.missing and source.link is None and not source.lenders:
            # No connection, no other way to ask: what the packets could not bring is lost.
            reason = below.lost_reason or "overflow"
            self._ready.put(source, receiver.on_gone([(0, 1 << 62)], reason, now=now))
        elif receiver.missing:
            self._incoming.wake_at(source, receiver.deadline())

    # --- the backlog ---

    def refill(self, now: float) -> None:
        """As long as frames have yet to be put together, some are ready."""
        while self.backlog and not self._ready.items:
            self.put_together(self.backlog[0], now)

    def put_together(self, source: Source, now: float) -> None:
        """Some frames of a stream in the backlog, which leaves it with the last."""
        packets, backlog = source.packets, self.backlog
        if packets is None or not packets.more:
            backlog.remove(source)
            self._ready.backlog_bytes = 0 if not backlog else self._ready.backlog_bytes
            return
        try:
            for frame in packets.go_on(now):
                self._on_frame(source, frame, now)
            self._after_packets(source, packets, now)
        except Exception:
            self._guard.failed("packets that were put together")
            backlog.remove(source)  # or it would be tried for ever; more packets put it back
        # Counted here, once for some frames; in between, what comes is simply added.
        waiting = [s.packets for s in backlog if s.packets is not None]
        self._ready.backlog_bytes = sum(other.complete_bytes for other in waiting)

    def put_all_together(self, source: Source, now: float) -> None:
        """What comes next is of another epoch, or nothing at all."""
        while source in self.backlog:
            self.put_together(source, now)
