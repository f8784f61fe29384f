"""A multicast stream on its way out: its packets, its sockets, and what receivers say.

Joins a `PacketSender` core to the `MulticastServer` sockets.  Used by `PublisherSide` with its
lock held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from struct import Struct
from typing import Any

from meshmsg import _platform
from meshmsg._access.multicast_keys import SendingSeal
from meshmsg._model.config import Stream
from meshmsg._model.errors import ProtocolError
from meshmsg._receive.multicast_receiver import info_of
from meshmsg._runtime.guard import Guard
from meshmsg._wire.multicast_info import MulticastInfo, SealInfo
from meshmsg._wire.packet import NACK, SEAL_BYTES, PacketRequest, PacketStatus, decode_packet
from meshmsg.recovery.multicast.packet_sender import PacketPolicy, PacketSender
from meshmsg.recovery.multicast.parity import check_parity_library
from meshmsg.transports.sockets import multicast_server
from meshmsg.transports.udp.multicast import Inlet

#: Count, epoch and first event in a frame's header.
_RANGE_OF_FRAME = Struct("<IQQ")
_RANGE_AT = 20
#: What a receiver is trusted with before it reports its own window.
FIRST_WINDOW_BYTES = 64 * 1024
#: Requests and reports are read for this long in one turn of the I/O thread.  What is more waits in
#: the kernel for so many times as long: a flood gets a small part of the time, whatever it asks.
INLET_S = 0.001
MUTED_TIMES = 9
_NACK = bytes([NACK])


class PacketOutlet:
    """The multicast side of one stream."""

    def __init__(
        self,
        config: Stream,
        wire_id: int,
        epoch: int,
        interface: str,
        seal: SendingSeal | None = None,
    ) -> None:
        transport = config.transport
        assert transport is not None
        if transport.parity is not None:
            check_parity_library()
        waits = config.overflow in ("block", "buffer")
        seal_bytes = 0 if seal is None else SEAL_BYTES
        packet_bytes = transport.packet_bytes - seal_bytes
        share = packet_bytes / transport.packet_bytes  # of the rates: seals count, too
        policy = PacketPolicy(
            packet_bytes=packet_bytes,
            flow=transport.flow or ("slowest" if waits else "rate"),
            rate=float(transport.rate) * share,
            repair_rate=float(transport.repair_rate) * share,
            buffer_bytes=int(config.buffer_bytes),
            buffer_age_s=float(transport.repair_age),
            linger_s=float(transport.linger),
            heartbeat_min_s=float(transport.heartbeat_min),
            heartbeat_max_s=float(transport.heartbeat_max),
            receiver_timeout_s=float(transport.receiver_timeout),
            status_interval_s=float(transport.status_interval),
            evict_after_s=None if config.evict_after is None else float(config.evict_after),
            parity=transport.parity,  # type: ignore[arg-type]
            hold=waits,
            seal_bytes=seal_bytes,
        )
        self.sender = PacketSender(wire_id, epoch, policy)
        self.server = multicast_server(transport, interface)
        self.info: MulticastInfo = info_of(
            transport, self.server.sources, packet_bytes, self.sender.reach * packet_bytes
        )
        self.seal = seal
        self.counters: Counter[str] = Counter()
        self.guard = Guard(f"multicast stream {config.label}", self.counters)
        self._wire_id = wire_id
        self._crowded_bytes = {
            "block": int(config.window_bytes),
            "buffer": int(config.buffer_bytes),
        }.get(config.overflow, 0)

    def open(self, now: float) -> None:
        """Let receivers know that the stream is there."""
        self.sender.open(now=now)

    def strangers(self, known: Container[int]) -> int:
        """Receivers in touch that are not connected: a one-way network's."""
        return sum(receiver not in known for receiver in self.sender.receiver_ids())

    def send(self, frame: bytes, now: float) -> bool:
        """Send a frame's packets, as many as flow control lets; returns whether that was all.

        The rest follows by `on_tick`.
        """
        count, _, first = _RANGE_OF_FRAME.unpack_from(frame, _RANGE_AT)
        sender = self.sender
        packet = sender.send_single(frame, first, first + count, now=now)
        if packet is not None:
            self._send(packet, len(packet))
            return True
        sender.add(frame, first, first + count, now=now)
        self._flush(now)
        return sender.sent >= sender.store.next

    def _send(self, data: bytes, packet_bytes: int) -> None:
        if self.seal is None:
            self.server.send(data, packet_bytes)
        else:
            self.server.send(self.seal.sealer.seal(data, packet_bytes), packet_bytes + SEAL_BYTES)

    def _flush(self, now: float) -> None:
        send = self._send if self.seal is not None else self.server.send
        while bursts := self.sender.take(now=now):
            for data, packet_bytes in bursts:
                send(data, packet_bytes)

    def on_tick(self, now: float) -> float:
        """Send what is due; returns when to come again."""
        self.sender.on_deadline(now=now)
        self._flush(now)
        due = self.sender.deadline(now=now)
        return due if self.seal is None else min(due, self.seal.on_tick(now))

    def on_inlet(self, inlet: Inlet, now: float) -> float:
        """Read what receivers say; returns for how long to leave what is still waiting."""
        clock = _platform.monotonic
        began = clock()
        muted_s = 0.0
        while received := inlet.recv():
            try:
                self._on_message(*received, now)
            except Exception:
                self.guard.failed("a packet of a receiver")
            spent_s = clock() - began
            if spent_s > INLET_S:
                muted_s = spent_s * MUTED_TIMES
                break
        self._flush(now)
        return muted_s

    def _on_message(self, data: bytes, source: tuple[Any, ...], now: float) -> None:
        if data[4:5] == _NACK and not self.sender.may_ask(source, now=now):
            self.counters["refused_requests"] += 1  # before it costs the time to look at it
            return
        if self.seal is not None:
            data = self.seal.opener.open(data, max(1, len(data)), now=now)
            if not data:
                return  # it is counted there
        try:
            message = decode_packet(data)
        except ProtocolError:
            self.counters["bad_packets"] += 1
            return
        if message.stream != self._wire_id:
            self.counters["other_packets"] += 1  # another stream shares the group
        elif isinstance(message, PacketRequest):
            self.sender.on_request(message, source, now=now)
        elif isinstance(message, PacketStatus):
            self.sender.on_status(message, now=now)
        else:
            self.counters["bad_packets"] += 1

    def admit(self, sub: int, now: float) -> int:
        """A connected receiver; returns the packet that it starts with."""
        return self.sender.admit(sub, FIRST_WINDOW_BYTES, now=now)

    def end(self, now: float) -> None:
        """Tell receivers that nothing more will come."""
        self.sender.end(now=now)
        self._flush(now)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for flow control."""
        return self.sender.unsent_bytes

    @property
    def sent_events(self) -> int:
        """One past the last event whose packets were all sent."""
        return self.sender.sent_events

    def is_crowded(self) -> bool:
        """Whether as much waits to be sent as the stream may keep before its publisher waits."""
        return 0 < self._crowded_bytes < self.sender.unsent_bytes

    def is_paced(self) -> bool:
        """Whether what is not sent waits for its time, and not for receivers to report."""
        return self.sender.is_open

    def is_busy(self) -> bool:
        """Whether there is something that is not sent, or that a receiver has yet to report."""
        sender = self.sender
        return bool(sender.unsent_bytes) or sender.slowest < sender.store.next

    def seal_info(self) -> SealInfo | None:
        """How packets are sealed from now on, for a receiver that is admitted."""
        return None if self.seal is None else self.seal.info()

    def _refused(self) -> Counter[str]:
        return Counter() if self.seal is None else self.seal.counters

    def stats(self) -> dict[str, Any]:
        """Figures, as plain data."""
        sender = self.sender
        return {
            **dict(sorted((sender.counters + self.counters + self._refused()).items())),
            "flow": sender.policy.flow,
            "next": sender.store.next,
            "sent": sender.sent,
            "first_available": sender.store.first,
            "receivers": sender.receivers,
            "slowest": sender.slowest,
            "injected_drops": self.server.counters["injected_drops"],
            **({} if self.seal is None else {"generation": self.seal.generation}),
            "lines": self.server.stats(),
        }
