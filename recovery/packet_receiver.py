"""The receiving half of the multicast transport: packets in any order in, frames in order out.

Finds gaps in the packet numbers, says when to ask for what (`LossDetector` has the timing), puts
frames together from their packets, and proves each by its checksum before it is handed on.  What
cannot be had is skipped: the gap then shows in the events' own numbers, and the stream's receiver
goes on with the next rung of the ladder.  One receiver serves one epoch of one stream.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from meshmsg._errors import ProtocolError
from meshmsg._frame import Frame
from meshmsg._packet import (
    ANSWERS,
    DATA,
    DATA_HEAD,
    ENDS,
    NACK,
    PACKET_MAGIC,
    RANGES_MAX,
    REPAIR,
    DataHead,
    PacketBeat,
    PacketParity,
    PacketRequest,
    check_data_head,
    decode_packet,
)
from meshmsg.recovery.loss_detector import LossDetector, NackTiming
from meshmsg.recovery.parity import ParityDecoder
from meshmsg.recovery.ranges import RangeSet

Range = tuple[int, int]

#: A packet further ahead than this is not believed: a real sender's heartbeats lead there.
JUMP_PACKETS_MAX = 1 << 22
#: Gaps at once; a sender of nonsense could make one of every second packet.
GAPS_MAX = 16_384
#: A frame that does not prove itself is asked for again this often.
SPOILED_MAX = 3
SPOILED_FRAMES_MAX = 1024
#: A gap that a sender knows nothing of for this long was never there.
IMAGINARY_S = 0.1
#: Packets remembered for parity.
RECENT_MAX = 512
#: Where the payload of a data packet starts.
_PAYLOAD = DATA_HEAD.size
_unpack_head = DATA_HEAD.unpack_from


class PacketReceiver:
    """Packets of one stream and epoch, put together."""

    def __init__(
        self,
        stream: int,
        epoch: int,
        start: int | None,
        *,
        receiver: int,
        timing: NackTiming,
        held_bytes_max: int,
        rng: random.Random,
        lines: int = 1,
    ) -> None:
        self.stream = stream
        self.epoch = epoch
        self.receiver = receiver
        self.started = start is not None
        self.next = start or 0  #: packets before this number are handed on or skipped
        self.high = self.next  #: one past the highest number heard of
        self.event_next = 0  #: events before this number exist, and their packets were seen to
        self.held_bytes = 0
        self.lost_reason = ""  #: why packets were given up last
        self.ended = False  #: the sender says that nothing more will come
        self.counters: Counter[str] = Counter()
        #: For each line: packets that it brought `first`, and those that it brought in vain.
        self.lines = [Counter[str]() for _ in range(lines)]
        self._detector = LossDetector(timing, rng)
        self._held_bytes_max = held_bytes_max
        self._held: dict[int, bytes] = {}
        self._lost = RangeSet()
        self._parts: list[bytes | memoryview] = []
        self._frame: tuple[int, int, int, int] | None = None
        self._skipping = start is None  # until a frame begins
        self._spoiled: dict[int, int] = {}
        self._beat: tuple[int, int] | None = None
        self._parity: ParityDecoder | None = None
        self._recent: dict[int, bytes] = {}

    # --- in ---

    def receive(self, data: bytes, packet_bytes: int, *, now: float, line: int = 0) -> list[Frame]:
        """Packets came, one behind the other; returns the frames that are complete and next."""
        out: list[Frame] = []
        view = memoryview(data)
        size = len(data)
        ours = (PACKET_MAGIC, self.stream, self.epoch)
        taken = refused = 0
        for at in range(0, size, packet_bytes):
            stop = at + packet_bytes if at + packet_bytes < size else size
            if stop - at <= _PAYLOAD or data[at + 4] > REPAIR:
                self._on_other(data[at:stop], out, now)
                continue
            head = _unpack_head(data, at)
            if (head[0], head[4], head[5]) != ours or not head[1]:
                self.counters["strange_packets"] += 1
                continue
            number, place = head[6], head[3]
            if (
                number == self.next == self.high
                and place == len(self._parts)
                and (place and head[7:] == self._frame)
                and self._parity is None
            ):
                # The next packet of the frame that is being put together: the path of most.
                self._parts.append(view[at + _PAYLOAD : stop])
                self.next = self.high = number + 1
                taken += 1
                if place + 1 == head[9]:
                    self._complete(out, now)
                continue
            if self._on_packet(head, view[at:stop], out, now):
                taken += 1
            else:
                refused += 1
        self.counters["packets"] += taken
        self.lines[line]["first"] += taken
        self.lines[line]["again"] += refused
        if self._beat is not None:
            self._look_at_beat()
        return out

    def _on_other(self, packet: bytes, out: list[Frame], now: float) -> None:
        try:
            message = decode_packet(packet)
        except ProtocolError:
            self.counters["bad_packets"] += 1
            return
        if (message.stream, message.epoch) != (self.stream, self.epoch):
            self.counters["strange_packets"] += 1
        elif isinstance(message, PacketBeat):
            self._on_beat(message, out, now)
        elif isinstance(message, PacketParity):
            self._on_parity(message, out, now)
        elif isinstance(message, PacketRequest):
            # Confirmed by the sender, or asked for by another receiver: no need to ask, too.
            for first, stop in message.ranges:
                held = self._detector.suppress(first, stop, now=now)
                self.counters["suppressed"] += held

    def _on_packet(
        self, head: tuple[int, ...], packet: memoryview, out: list[Frame], now: float
    ) -> bool:
        """A data packet that is not simply the next one; returns whether it was of use."""
        fields = DataHead(*head)  # type: ignore[arg-type]
        number = fields.number
        try:
            check_data_head(fields, len(packet) - _PAYLOAD)
        except ProtocolError:
            self.counters["bad_packets"] += 1
            return False
        if not self.started:
            if fields.place:
                return False
            self.started = True
            self.next = self.high = number
        if number < self.next or number in self._held:
            self.counters["duplicates"] += 1
            return False
        if number != self.next and not self._has_room(number, len(packet)):
            return False
        if self._parity is not None:
            self._remember(number, bytes(packet))
        self._note(number, fields.kind, now)
        if number == self.next:
            self._append(head, packet, out, now)
            self._advance(out, now)
        else:
            self._held[number] = bytes(packet)
            self.held_bytes += len(packet)
        return True

    def _has_room(self, number: int, size: int) -> bool:
        if number - self.high > JUMP_PACKETS_MAX or (
            number > self.high and len(self._detector) >= GAPS_MAX
        ):
            self.counters["far_packets"] += 1
            return False
        if self.held_bytes + size > self._held_bytes_max:
            self.counters["held_full"] += 1
            return False
        return True

    def _note(self, number: int, kind: int, now: float) -> None:
        """Enter a packet that came into the account of what is missing."""
        if number >= self.high:
            if number > self.high:
                self._detector.add(self.high, number, now=now)
            self.high = number + 1
        elif self._detector.arrived(number, number + 1, now=now):
            self.counters["repaired" if kind == REPAIR else "late"] += 1
        elif self._lost:
            self._lost.remove(number, number + 1)  # given up, and here after all

    def _advance(self, out: list[Frame], now: float) -> None:
        """Go on with what is held, and over what is lost."""
        held = self._held
        while True:
            packet = held.pop(self.next, None)
            if packet is not None:
                self.held_bytes -= len(packet)
                self._append(_unpack_head(packet), memoryview(packet), out, now)
            elif self._lost and self._lost.bounds[0] <= self.next:
                first, stop = self._lost.pop_first()
                self.counters["lost_packets"] += stop - max(first, self.next)
                self.next = max(self.next, stop)
                self._drop_frame()
            else:
                return

    def _append(
        self, head: tuple[int, ...], packet: memoryview, out: list[Frame], now: float
    ) -> None:
        """The next packet in order: add it to its frame."""
        number, place = head[6], head[3]
        self.next = number + 1
        if place == 0:
            if self._parts:
                self._misfit(number)
            self._frame = head[7:]  # type: ignore[assignment]
            self._skipping = False
        elif self._skipping:
            self.counters["orphans"] += 1
            return
        elif place != len(self._parts) or head[7:] != self._frame:
            self._misfit(number)
            return
        self._parts.append(packet[_PAYLOAD:])
        if place + 1 == head[9]:
            self._complete(out, now)

    def _misfit(self, number: int) -> None:
        """A packet of another frame stands where the next one of this frame should."""
        self.counters["misfits"] += 1
        self._drop_frame()

    def _drop_frame(self) -> None:
        if self._parts:
            self.counters["dropped_frames"] += 1
        self._parts = []
        self._frame = None
        self._skipping = True

    def _complete(self, out: list[Frame], now: float) -> None:
        parts, self._parts = self._parts, []
        expected, self._frame = self._frame, None
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        try:
            frame = Frame(data)
            if (frame.stream, frame.epoch) != (self.stream, self.epoch):
                raise ProtocolError("a frame of another stream")
            if (frame.first, len(data), len(parts), frame.count) != expected:
                raise ProtocolError("the frame is not what its packets said")
        except ProtocolError:
            self._on_spoiled(self.next - len(parts), len(parts), now)
            return
        self.counters["frames"] += 1
        out.append(frame)

    def _on_spoiled(self, first: int, packets: int, now: float) -> None:
        """One of the packets was not the sender's: ask for all of them again."""
        self.counters["spoiled_frames"] += 1
        tries = self._spoiled.get(first, 0) + 1
        if tries > SPOILED_MAX or len(self._spoiled) >= SPOILED_FRAMES_MAX:
            self._spoiled.pop(first, None)
            self.counters["dropped_frames"] += 1
            self._skipping = True
            return
        self._spoiled[first] = tries
        self.next = first
        self._recent.clear()
        self._detector.add(first, first + packets, now=now)

    # --- what the sender says ---

    def _on_beat(self, beat: PacketBeat, out: list[Frame], now: float) -> None:
        self._detector.in_group_of(beat.receivers)
        self.ended = bool(beat.flags & ENDS)
        if not self.started:
            return
        if beat.next > self.high:
            self._detector.add(self.high, beat.next, now=now)
            self.high = beat.next
        elif beat.flags & ANSWERS and beat.next < self.high:
            self._doubt(beat.next, now)
        if beat.first > self.next:
            self._give_up(
                [(a, min(b, beat.first)) for a, b in self._detector.ranges() if a < beat.first],
                now,
            )
            self._advance(out, now)
        self._beat = (beat.next, beat.next_event)
        self._look_at_beat()

    def start_from(self, beat: PacketBeat) -> None:
        """Begin with the oldest that the sender still has."""
        if not self.started:
            self.started = True
            self.next = self.high = beat.first

    def _look_at_beat(self) -> None:
        assert self._beat is not None
        next_, next_event = self._beat
        if self.next >= next_:
            self.event_next = max(self.event_next, next_event)
            self._beat = None

    def _doubt(self, next_: int, now: float) -> None:
        """The sender has not come as far as we heard: what lies beyond was never sent."""
        imaginary = [
            (max(a, next_), b)
            for a, b in self._detector.ranges(before=now - IMAGINARY_S)
            if b > next_
        ]
        for first, stop in imaginary:
            self._detector.arrived(first, stop, now=now)
            self.counters["imaginary"] += stop - first
        if imaginary:
            for number in [n for n in self._held if n >= next_]:
                self.held_bytes -= len(self._held.pop(number))
            for first, stop in self._detector.ranges():
                if stop > next_:
                    self._detector.arrived(max(first, next_), stop, now=now)
            self.high = max(self.next, next_)

    def _give_up(self, ranges: Sequence[Range], now: float) -> None:
        for first, stop in ranges:
            self._detector.arrived(first, stop, now=now)
            self._lost.add(first, stop)
            self.lost_reason = "overflow"

    # --- parity ---

    def use_parity(self) -> None:
        """The sender adds parity packets: remember what they protect."""
        self._parity = ParityDecoder()

    def _remember(self, number: int, packet: bytes) -> None:
        if packet[4] == REPAIR:
            packet = packet[:4] + bytes([DATA]) + packet[5:]
        recent = self._recent
        recent[number] = packet
        if len(recent) > RECENT_MAX:
            for old in sorted(recent)[: RECENT_MAX // 2]:
                del recent[old]

    def _on_parity(self, parity: PacketParity, out: list[Frame], now: float) -> None:
        self.counters["parity_packets"] += 1
        if self._parity is None or parity.first + parity.packets <= self.next:
            return
        for packet in self._parity.on_parity(parity, self._recent):
            if len(packet) <= _PAYLOAD:
                continue
            head = _unpack_head(packet)
            if (head[0], head[1], head[4], head[5]) != (
                PACKET_MAGIC,
                DATA,
                self.stream,
                self.epoch,
            ):
                self.counters["bad_packets"] += 1
            elif self._on_packet(head, memoryview(packet), out, now):
                self.counters["computed"] += 1

    # --- time ---

    def deadline(self) -> float:
        """When `on_deadline` has something to do."""
        return self._detector.deadline()

    def on_deadline(self, *, now: float) -> tuple[list[bytes], list[Frame]]:
        """Requests to send, and frames that come free because something is given up."""
        if self._detector.deadline() > now:
            return [], []
        asks, lost = self._detector.on_deadline(now=now, ranges_max=RANGES_MAX)
        out: list[Frame] = []
        if lost:
            for first, stop in lost:
                self._lost.add(first, stop)
            self.lost_reason = "deadline"
            self._advance(out, now)
            if self._beat is not None:
                self._look_at_beat()
        if not asks:
            return [], out
        self.counters["nacks"] += 1
        self.counters["asked_packets"] += sum(stop - first for first, stop in asks)
        request = PacketRequest(NACK, self.stream, self.epoch, self.receiver, asks)
        return [request.encode()], out

    def hold(self, *, now: float) -> None:
        """There is no room for what would come: ask for nothing, and give nothing up."""
        self._detector.hold(now=now)

    @property
    def missing(self) -> int:
        """Packets known to exist that have not come."""
        return self._detector.missing

    @property
    def is_behind(self) -> bool:
        """Whether something is missing, or held behind what is."""
        return bool(self._detector.missing or self._held or self._beat)
