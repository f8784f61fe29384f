"""A multicast stream as one subscription receives it: its lines, its packets, its reports.

Joins a `PacketReceiver` core to the `MulticastClient` sockets of the subscription.  Driven by the
`Intake` with its lock held.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from meshmsg._access.multicast_keys import ReceivingSeal, sealed
from meshmsg._model.errors import ProtocolError
from meshmsg._model.multicast_config import Multicast, split_group
from meshmsg._wire.frame import Frame
from meshmsg._wire.multicast_info import MulticastInfo, SealInfo, SealKeys
from meshmsg._wire.packet import (
    DATA_HEAD,
    HEARTBEAT,
    LEAVES,
    PACKET_MAGIC,
    REPAIR,
    SEAL_BYTES,
    PacketBeat,
    PacketStatus,
    decode_packet,
    packet_kind,
)
from meshmsg.recovery.multicast.packet_receiver import AHEAD_S, PacketReceiver
from meshmsg.recovery.multicast.parity import has_parity_library
from meshmsg.recovery.stream.loss_detector import NEVER, NackTiming
from meshmsg.transports.udp.interfaces import find_interface
from meshmsg.transports.udp.multicast import Datagram, Group, MulticastClient

log = logging.getLogger("meshmsg.peer")

RETRY_GROWTH = 1.5
RETRY_MAX_S = 0.2
#: Reported at each such part of the window.
WINDOW_PARTS = 4

#: Frames put together at once, of those that a repair has made complete.
FRAMES_AT_ONCE = 2

#: Epochs of a feed that are remembered, so that it can go back to them.
EPOCHS_MAX = 100

#: Epoch, first packet, first event, and one past the last event, as a feed begins.
Begin = Callable[[int, int, int, int], None]


def info_of(
    config: Multicast,
    sources: Sequence[tuple[str, int]],
    packet_bytes: int | None = None,
    reach_bytes: int = 0,
) -> MulticastInfo:
    """What subscribers are told of a stream's transport."""
    return MulticastInfo(
        group=config.group,
        second=config.second or "",
        request_port=config.request_port or 0,
        sources=list(sources),
        packet_bytes=config.packet_bytes if packet_bytes is None else packet_bytes,
        parity=config.parity is not None,
        nack_delay_s=float(config.nack_delay),
        nack_backoff_s=float(config.nack_backoff),
        nack_retry_s=float(config.nack_retry),
        nack_deadline_s=float(config.nack_deadline),
        status_interval_s=float(config.status_interval),
        receiver_timeout_s=float(config.receiver_timeout),
        receive_buffer_bytes=int(config.receive_buffer),
        reach_bytes=reach_bytes,
    )


def groups_to_join(info: MulticastInfo, interface: str, second: str = "") -> list[Group]:
    """The groups of a stream on this side's interface; raises `ConfigError`."""
    here = find_interface("interface", interface)
    groups = [Group(*split_group("group", info.group), here)]
    if info.second:
        there = find_interface("second_interface", second) if second else here
        groups.append(Group(*split_group("second", info.second), there))
    return groups


class PacketSource:
    """Packets of one stream, on one or two lines, as they become frames."""

    def __init__(
        self,
        info: MulticastInfo,
        wire_id: int,
        sub: int,
        lines: list[MulticastClient],
        held_bytes_max: int,
        seal: ReceivingSeal | None = None,
    ) -> None:
        self.info = info
        self.seal = seal
        self.lines = lines
        self.receiver: PacketReceiver | None = None
        self.counters: Counter[str] = Counter()
        self.begin: Begin | None = None  #: of a feed without a connection
        self.begin_at: Callable[[PacketBeat], tuple[int, int]] | None = None
        self._wire_id = wire_id
        self._sub = sub
        self._held_bytes_max = held_bytes_max
        self._random = random.Random(sub)
        self._sources = set(info.sources)
        self._ports = {port for host, port in info.sources if host in ("", "0.0.0.0", "::")}
        self._sender: tuple[Any, ...] | None = None  # where the last good packet came from
        self._pinned: list[tuple[Any, ...]] = []  # by hand: the senders that we listen to
        self._heard_at = -NEVER
        self._entered: deque[int] = deque(maxlen=EPOCHS_MAX)
        # A packet always: with less, the sender could send nothing.
        self._window_max = max(info.packet_bytes, min(line.window_bytes for line in lines))
        if info.reach_bytes:  # reported in parts of what the sender waits for
            self._window_max = max(info.packet_bytes, min(self._window_max, info.reach_bytes))
        self._report_at = 0  # the packet whose arrival is reported
        self._reported_window = -1
        self._cramped = True  # the window may have opened since it was reported
        self._report_due = 0.0
        self._timing = _timing_of(info)

    def renew(self, info: MulticastInfo) -> None:
        """The publisher came back, and sends from elsewhere."""
        self.info = info
        self._timing = _timing_of(info)  # of the epoch that it comes with
        self._sources = set(info.sources)
        self._ports = {port for host, port in info.sources if host in ("", "0.0.0.0", "::")}

    def enter(self, epoch: int, packet: int, seal: SealInfo | None = None) -> None:
        """Receive an epoch from this packet on."""
        if self.seal is not None and self.begin is None:
            self.seal.enter(seal)
        self.receiver = PacketReceiver(
            self._wire_id,
            epoch,
            packet,
            receiver=self._sub,
            timing=self._timing,
            held_bytes_max=self._held_bytes_max,
            rng=self._random,
            lines=len(self.lines),
        )
        self.receiver.frames_max = FRAMES_AT_ONCE
        self._entered.append(epoch)
        if self.info.parity and has_parity_library():
            self.receiver.use_parity()
        elif self.info.parity:  # its packets are passed over, and what is lost is asked for
            log.warning("parity is sent, but not used: pip install 'meshmsg[parity]'")
        self._report_at = packet
        self._report_due = 0.0

    def rekey(self, keys: SealKeys) -> None:
        """Other keys will be used."""
        if self.seal is not None:
            self.seal.give(keys)

    # --- in ---

    def receive(self, client: MulticastClient, datagram: Datagram, now: float) -> list[Frame]:
        """A datagram came; returns the frames that are next."""
        data, packet_bytes, source = datagram
        if source != self._sender and not self._is_known(source, now):
            self.counters["other_sources"] += 1
            return []
        line = self.lines.index(client) if len(self.lines) > 1 else 0
        receiver = self.receiver
        if self.seal is not None and (receiver is not None or self.begin is not None):
            if self.begin is not None and (receiver is None or self._is_silent(now)):
                self.seal.expect()
            data = self.seal.open(data, packet_bytes, line, now)
            packet_bytes -= SEAL_BYTES
            if not data:
                return []
        elif data[:4] != PACKET_MAGIC:
            self._refuse_sealed(-(-len(data) // packet_bytes))
            return []
        if receiver is None or data[16:24] != receiver.epoch.to_bytes(8, "little"):
            if self.begin is None:
                self.counters["other_epochs"] += 1
                return []
            self._consider(data[:packet_bytes], source, now)
            receiver = self.receiver
            if receiver is None or data[16:24] != receiver.epoch.to_bytes(8, "little"):
                return []
        self._heard_at = now
        if source != self._sender:
            self._sender = source
            if self.begin is not None and source not in self._pinned:
                self._pinned.append(source)
        return receiver.receive(data, packet_bytes, now=now, line=line)

    @property
    def more(self) -> bool:
        """Whether frames are complete that have yet to be put together: `go_on`."""
        return self.receiver is not None and self.receiver.more

    def go_on(self, now: float) -> list[Frame]:
        """The next of those."""
        return [] if self.receiver is None else self.receiver.go_on(now=now)

    @property
    def complete_bytes(self) -> int:
        """How much those are, about."""
        return 0 if self.receiver is None else self.receiver.complete * self.info.packet_bytes

    def _refuse_sealed(self, count: int) -> None:
        """There is no key, or none yet."""
        if self.seal is None and not self.counters["sealed_packets"]:
            log.warning("packets of a sealed stream are dropped: give the peer its Security")
        self.counters["other_epochs" if self.seal is not None else "sealed_packets"] += count

    def is_single(self, data: bytes, source: tuple[Any, ...], epoch: int, event: int) -> bool:
        """Whether a datagram that begins as live packets of ours do is a frame, and the next."""
        receiver = self.receiver
        if receiver is None or source != self._sender or receiver.epoch != epoch:
            return False
        return receiver.is_single(data, event)

    def take_single(self, now: float) -> None:
        """The frame of such a datagram proved itself."""
        assert self.receiver is not None
        self.receiver.take_single()
        self._heard_at = now

    def _is_known(self, source: tuple[Any, ...], now: float) -> bool:
        """Whether packets from there are our publisher's."""
        if self.begin is None:
            return source[:2] in self._sources or source[1] in self._ports
        # By hand: whoever spoke first, a socket for each line, until it falls silent.
        if self._is_silent(now):
            self._pinned.clear()
        return source in self._pinned or len(self._pinned) < len(self.lines)

    def _is_silent(self, now: float) -> bool:
        return now - self._heard_at > self.info.receiver_timeout_s

    def _consider(self, packet: bytes, source: tuple[Any, ...], now: float) -> None:
        """By hand: an epoch that is not ours.  A later one of the same sender is entered.

        So is an earlier one, if for a while nothing is heard of ours: one packet that somebody else
        sent may have led us there.
        """
        assert self.begin is not None
        epoch = int.from_bytes(packet[16:24], "little")
        receiver = self.receiver
        if receiver is not None and (
            (epoch < receiver.epoch and now - self._heard_at < AHEAD_S)
            or (source not in self._pinned and not self._is_silent(now))
        ):
            self.counters["other_epochs"] += 1
            return
        kind = packet_kind(packet)
        beat = _decoded(packet) if kind == HEARTBEAT else None
        if receiver is not None and (epoch > receiver.epoch or epoch in self._entered):
            # All of a new epoch is ours, from its first packet on, and of one that we were in what
            # we have not had yet; its heartbeat proves it.
            if isinstance(beat, PacketBeat):
                self.begin(epoch, 0 if epoch > receiver.epoch else beat.first, 0, 0)
        elif isinstance(beat, PacketBeat):
            at = self.begin_at
            first, event = (beat.next, beat.next_event) if at is None else at(beat)
            self.begin(epoch, first, event, beat.next_event)
        elif 0 < kind <= REPAIR and len(packet) > DATA_HEAD.size and self.begin_at is None:
            head = DATA_HEAD.unpack_from(packet)
            if head[1] != REPAIR and head[3] == 0:
                self.begin(epoch, head[6], head[7], head[7])

    # --- out ---

    def on_deadline(self, now: float) -> list[Frame]:
        """Send requests that are due; returns frames that come free."""
        receiver = self.receiver
        if receiver is None:
            return []
        requests, frames = receiver.on_deadline(now=now)
        if requests and not self._is_ready():
            return frames
        for packet in requests:
            for line in self.lines:  # sealed for each: the same bytes again are refused
                line.request(sealed(self.seal, packet), self.info.request_port)
        return frames

    def deadline(self) -> float:
        """When `on_deadline` has something to do."""
        return NEVER if self.receiver is None else self.receiver.deadline()

    def report_due(self) -> float:
        """When `report` has, even if nothing comes."""
        return NEVER if self.receiver is None else self._report_due

    def report(self, now: float, room_bytes: int) -> None:
        """Tell the sender how far we are, if it is time or far enough."""
        receiver, sender = self.receiver, self._sender
        if receiver is None or sender is None or not self._is_ready():
            self._report_due = now + self.info.status_interval_s
            return
        if now < self._report_due and receiver.high < self._report_at and not self._cramped:
            return
        # Reading ahead may overrun the inbox by a datagram: less than no room is none.
        # A repair waits behind what is on its way.  Several receivers take turns with the sender on
        # the processors, and want something in stock; a single one runs beside it.
        window_max = self._window_max
        if receiver.is_alone:
            window_max = max(self.info.packet_bytes, window_max // 2)
        window = max(0, min(room_bytes, window_max))
        opened = self._reported_window < window // 2
        if now < self._report_due and receiver.high < self._report_at and not opened:
            return
        self._report_due = now + self.info.status_interval_s
        part = window // WINDOW_PARTS // self.info.packet_bytes
        self._report_at = receiver.high + max(1, part)
        self._reported_window = window
        self._cramped = window < window_max // 2
        if receiver.held_bytes * 2 < self._held_bytes_max:
            # What is held behind a gap does not lie in the socket any more: a repair that takes
            # its time does not hold up what comes behind.
            window += (receiver.high - receiver.next) * self.info.packet_bytes
        status = PacketStatus(self._wire_id, receiver.epoch, receiver.next, self._sub, window)
        self.lines[0].report(sealed(self.seal, status.encode()), sender)

    def _is_ready(self) -> bool:
        """Whether something may be sent: not before it is known with which key."""
        return self.seal is None or self.seal.is_ready

    def leave(self) -> None:
        """Tell the sender that it need not wait for us any more."""
        receiver, sender = self.receiver, self._sender
        if receiver is not None and sender is not None and self._is_ready():
            status = PacketStatus(
                self._wire_id, receiver.epoch, receiver.next, self._sub, 0, LEAVES
            )
            self.lines[0].report(sealed(self.seal, status.encode()), sender)

    def refused(self) -> Counter[str]:
        """What was dropped before anybody looked into it, by reason."""
        return self.counters if self.seal is None else self.counters + self.seal.counters

    def stats(self) -> dict[str, Any]:
        """Figures, as plain data."""
        receiver = self.receiver
        counters = self.refused()
        if receiver is not None:
            counters = counters + receiver.figures()
        figures: dict[str, Any] = dict(counters)
        if receiver is not None:
            figures |= {"next": receiver.next, "missing": receiver.missing}
            if receiver.repairs is not None:
                figures["repair_s"] = receiver.repairs.as_dict()
        if self.seal is not None:
            figures["generation"] = self.seal.opener.keys.generation
        per_line = receiver.lines if receiver is not None else [Counter[str]() for _ in self.lines]
        figures["lines"] = [
            {"first": 0, "again": 0, **line.stats(), **counters}
            for line, counters in zip(self.lines, per_line, strict=True)
        ]
        if receiver is not None:
            figures["lines"][0]["first"] += receiver.singles  # these have but one line
        if self.seal is not None:
            for line, copies in zip(figures["lines"], self.seal.opener.copies, strict=True):
                line["again"] += copies
        return figures


def _timing_of(info: MulticastInfo) -> NackTiming:
    return NackTiming(
        delay_s=info.nack_delay_s,
        spread_s=info.nack_backoff_s,
        retry_s=info.nack_retry_s,
        retry_growth=RETRY_GROWTH,
        retry_max_s=max(RETRY_MAX_S, info.nack_retry_s),
        deadline_s=info.nack_deadline_s,
        learns=True,
    )


def _decoded(packet: bytes) -> Any:
    try:
        return decode_packet(packet)
    except ProtocolError:
        return None
