"""The receiving half of the multicast transport: packets in any order in, frames in order out.

Finds gaps in the packet numbers, says when to ask for what (`LossDetector` has the timing), puts
frames together from their packets, and proves each by its checksum before it is handed on.  What
cannot be had is skipped: the gap then shows in the events' own numbers, and the stream's receiver
goes on with the next rung of the ladder.  One receiver serves one epoch of one stream.

Authority: without seals anybody near can send in the sender's name, so that no packet is believed
for good.  A frame proves itself.  A number far ahead is believed when it is said for a while and
nothing else is.  A heartbeat may lead ahead, over what the sender no longer holds; if all that is
heard for a while lies behind, the receiver goes back to where it left off.  The number of events
that a heartbeat names counts only where packets were passed over, after it was said for a while,
and no further than the packets that were passed over can reach.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import Any

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame import FRAME_EVENTS_MAX, Frame
from meshmsg._wire.packet import (
    ANSWERS,
    CONFIRM,
    DATA,
    DATA_HEAD,
    ENDS,
    HEAD,
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
from meshmsg.recovery.multicast.held_packets import HeldPackets
from meshmsg.recovery.multicast.packet_runs import PAYLOAD_AT as _PAYLOAD
from meshmsg.recovery.multicast.packet_runs import Run, join_runs, run_length, run_packet
from meshmsg.recovery.multicast.parity import ParityDecoder
from meshmsg.recovery.stream.histogram import Histogram
from meshmsg.recovery.stream.loss_detector import NEVER, LossDetector, NackTiming
from meshmsg.recovery.stream.ranges import RangeSet

Range = tuple[int, int]

#: A packet further ahead than this is not believed: a real sender's heartbeats lead there.
JUMP_PACKETS_MAX = 1 << 22
#: Heartbeats from that far ahead are believed when nothing else was heard for this long.
FAR_S = 2.5
#: Gaps at once; a sender of nonsense could make one of every second packet.
GAPS_MAX = 16_384
#: Receivers there may be, until the sender says how many there are.
GROUP_UNKNOWN = 10
#: A frame that does not prove itself is asked for again this often.
SPOILED_MAX = 3
SPOILED_FRAMES_MAX = 1024
#: A gap that a sender knows nothing of for this long was never there.
IMAGINARY_S = 0.1
#: Packets remembered for parity.
RECENT_MAX = 512
#: A sender that says for this long that it has not come as far as we have is right.
AHEAD_S = 1.0
_NUMBER_AT = 24
_unpack_head = DATA_HEAD.unpack_from
_unpack_rest = Struct("<QQIHH").unpack_from


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
        #: What heartbeats say that the next event is, over how many packets; for `take_tail`.
        self.tail: tuple[int, int] | None = None
        self.lost_reason = ""  #: why packets were given up last
        self.ended = False  #: the sender says that nothing more will come
        self.singles = 0  #: frames that were one packet and the next one
        self.frames_max = 0  #: so many that were held are handed on at once; 0: all there are
        self.more = False  #: there are more: `go_on`
        self.counters: Counter[str] = Counter()
        self.repairs: Histogram | None = None  #: how long they took, once there was one
        #: For each line: packets that it brought `first`, and those that it brought in vain.
        self.lines = [Counter[str]() for _ in range(lines)]
        self._detector = LossDetector(timing, rng)
        self._detector.in_group_of(GROUP_UNKNOWN)
        self._held_bytes_max = held_bytes_max
        self._held = HeldPackets()
        self._lost = RangeSet()
        self._parts: list[Run] = []  # of the frame that is next
        self._part_count = 0  # packets in them
        self._frame: tuple[Any, ...] | None = None
        self._shape: tuple[Any, ...] | None = None  # of the frame whose packet came last
        self._skipping = start is None  # until a frame begins
        self._skipped_from = self.next  # what was skipped began here, after the last whole frame
        self._skipped_to = self.next  # ... and ended here
        self._tail_since: float | None = None  # heartbeats say where events are after it
        self._ahead_since: float | None = None
        self._ids = (PACKET_MAGIC, stream, epoch)
        self._spoiled: dict[int, int] = {}
        self._beat: tuple[int, int] | None = None
        self._far_since = NEVER  # heartbeats from far ahead come, and no others
        self._parity: ParityDecoder | None = None
        self._recent: dict[int, bytes] = {}

    # --- in ---

    def receive(self, data: bytes, packet_bytes: int, *, now: float, line: int = 0) -> list[Frame]:
        """Packets came, one behind the other; returns the frames that are complete and next."""
        out: list[Frame] = []
        size = len(data)
        at = taken = refused = 0
        while at < size:
            stop = at + packet_bytes
            if stop > size:
                stop = size
            if stop - at <= _PAYLOAD or data[at + 4] > REPAIR:
                self._on_other(data[at:stop], out, now)
                at = stop
                continue
            head = _unpack_head(data, at)
            number = head[6]
            if (head[0], head[4], head[5]) != self._ids or not head[1]:
                self.counters["strange_packets"] += 1
            elif number == self.next == self.high and (
                count := self._take_run(data, at, stop, packet_bytes, head, out, now)
            ):  # the path of nearly all
                taken += count
                at += count * packet_bytes
                continue
            elif number < self.next and self.started:
                self.counters["duplicates"] += 1
                refused += 1
            elif number >= self.high and (
                count := self._hold_run(data, at, stop, packet_bytes, head, now)
            ):  # behind a gap, the path of nearly all
                taken += count
                at += count * packet_bytes
                continue
            elif self._on_packet(head, data[at:stop], out, now):
                taken += 1
            else:
                refused += 1
            at = stop
        if taken:
            self.counters["packets"] += taken
            self.lines[line]["first"] += taken
            self._ahead_since = None
            self._far_since = NEVER
        if refused:
            self.lines[line]["again"] += refused
        if self._beat is not None:
            self._look_at_beat(now)
        return out

    def go_on(self, *, now: float) -> list[Frame]:
        """Where there is more: the next frames of what is held.

        After a repair many are complete at a time.  Put together one by one, as they are wanted,
        each is still in the processor's caches when it is read.
        """
        out: list[Frame] = []
        self._advance(out, now)
        if self._beat is not None:
            self._look_at_beat(now)
        return out

    def is_single(self, data: bytes, event: int) -> bool:
        """Whether a packet is all of a frame, the next one, and starts with this event.

        The caller knows by the first bytes (`single_prefix`) that it is a first packet of ours.  If
        the frame proves itself, `take_single` follows; otherwise `receive`.
        """
        size = len(data)
        if size <= _PAYLOAD:
            return False
        number, first, frame_bytes, packets, _ = _unpack_rest(data, _NUMBER_AT)
        return bool(
            number == self.next == self.high
            and first == event
            and packets == 1
            and frame_bytes == size - _PAYLOAD
            and not self._parts
            and self._parity is None
            and self._beat is None
            and self.started
        )

    def take_single(self) -> None:
        """The packet that `is_single` was asked of brought its frame."""
        self.next = self.high = self.next + 1
        self._skipping = False
        self._ahead_since = None
        self.singles += 1

    @property
    def single_prefix(self) -> bytes:
        """How a live packet of ours begins that is the first of its frame."""
        return HEAD.pack(PACKET_MAGIC, DATA, 0, 0, self.stream, self.epoch, 0)[:_NUMBER_AT]

    def figures(self) -> Counter[str]:
        """All counters."""
        return self.counters + Counter({"packets": self.singles, "frames": self.singles})

    def _take_run(
        self,
        data: bytes,
        at: int,
        stop: int,
        packet_bytes: int,
        head: tuple[Any, ...],
        out: list[Frame],
        now: float,
    ) -> int:
        """Nothing is missing, and here is what comes next: take it and what follows it.

        Returns how many packets were taken; none if it is not as simple as that.
        """
        place, number, packets = head[3], head[6], head[9]
        if place != self._part_count or not self.started or self._parity is not None:
            return 0
        if packets == 1 and not place:
            self.next = self.high = number + 1
            self._skipping = False
            self._complete(data[at + _PAYLOAD : stop], 1, head[7:], out, now)
            return 1
        if place:
            if head[7:] != self._frame:
                return 0
        else:
            try:
                check_data_head(DataHead(*head), stop - at - _PAYLOAD)
            except ProtocolError:
                return 0
            self._frame = head[7:]
            self._skipping = False
        count = run_length(data, at, packet_bytes)
        self._parts.append((count, data, at, packet_bytes, place, ()))
        self._part_count += count
        self.next = self.high = number + count
        if place + count == packets:
            self._join(out, now)
        return count

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
            if message.kind == CONFIRM and message.asker:
                self._detector.in_group_of(min(message.asker, 0xFFFF))
            for first, stop in message.ranges:
                self._detector.suppress(first, stop, now=now)

    def _on_packet(
        self, head: tuple[Any, ...], packet: bytes, out: list[Frame], now: float
    ) -> bool:
        """A data packet that is not simply the next one; returns whether it was of use."""
        fields = DataHead(*head)
        number = fields.number
        try:
            check_data_head(fields, len(packet) - _PAYLOAD)
        except ProtocolError:
            self.counters["bad_packets"] += 1
            return False
        if not self.started:
            if fields.place or fields.kind == REPAIR:
                return False
            self.started = True
            self.next = self.high = self._skipped_from = self._skipped_to = number
        if number < self.high and not self._is_wanted(number):
            self.counters["duplicates"] += 1
            return False
        refusal = self._refusal(number, len(packet))
        if refusal and number != self.next:
            self.counters[refusal] += 1
            return False
        if self._parity is not None:
            self._remember(number, packet)
        if number >= self.high:
            self._shape = head[7:]
        self._note(number, fields.kind, now)
        if number == self.next:
            self._append(head, packet, out, now)
            self._advance(out, now)
        else:
            self._held.add(number, (1, packet, 0, len(packet), fields.place, head[7:]))
        return True

    def _is_wanted(self, number: int) -> bool:
        """Whether a packet that was heard of is neither handed on nor held."""
        return number >= self.next and (number in self._detector or number in self._lost)

    def _hold_run(
        self,
        data: bytes,
        at: int,
        stop: int,
        packet_bytes: int,
        head: tuple[Any, ...],
        now: float,
    ) -> int:
        """Behind a gap, old or new: take packets of one frame that follow each other.

        Returns how many were taken; none if it is not as simple as that.
        """
        number, place, shape = head[6], head[3], head[7:]
        if number == self.next or not self.started or self._parity is not None:
            return 0
        if shape == self._shape and place < head[9]:
            shape = self._shape  # one object for all packets of a frame
        else:
            try:
                check_data_head(DataHead(*head), stop - at - _PAYLOAD)
            except ProtocolError:
                return 0
        count = run_length(data, at, packet_bytes)
        held, high, size = self._held, self.high, count * packet_bytes
        if held.bytes + size > self._held_bytes_max or (
            number > high and self._refusal(number, size)
        ):
            return 0
        self._shape = shape
        if number > high:
            self._detector.add(high, number, now=now)
        self.high = number + count
        held.runs[number] = (count, data, at, packet_bytes, place, shape)  # as by `add`
        held.bytes += size
        return count

    def _refusal(self, number: int, size: int) -> str:
        """Why packets cannot be held, as it is counted; empty if they can."""
        if number - self.high > JUMP_PACKETS_MAX or (
            number > self.high and len(self._detector) >= GAPS_MAX
        ):
            return "far_packets"
        return "held_full" if self._held.bytes + size > self._held_bytes_max else ""

    def _note(self, number: int, kind: int, now: float) -> None:
        """Enter a packet that came into the account of what is missing."""
        unasked = self._detector.unasked
        if number >= self.high:
            if number > self.high:
                self._detector.add(self.high, number, now=now)
            self.high = number + 1
        elif self._detector.arrived(number, number + 1, now=now):
            self.counters["repaired" if kind == REPAIR else "late"] += 1
            if kind == REPAIR and self._detector.unasked > unasked:
                self.counters["suppressed"] += 1  # another's request brought it
            elif kind == REPAIR:
                self.repairs = self.repairs or Histogram()
                self.repairs.add(self._detector.waited_s)
        elif self._lost:
            self._lost.remove(number, number + 1)  # given up, and here after all

    def _advance(self, out: list[Frame], now: float) -> None:
        """Go on with what is held, and over what is lost."""
        self.more = False
        held = self._held
        runs = held.runs
        while True:
            number = self.next
            if number in runs:
                if self.frames_max and len(out) >= self.frames_max:
                    self.more = True
                    return
                run = runs.pop(number)  # as by `take`
                held.bytes -= run[0] * run[3]
                if not self._append_run(run, out, now) and not self._take_apart(run, out, now):
                    return
            elif self._lost and self._lost.bounds[0] <= number:
                first, stop = self._lost.pop_first()
                self.counters["lost_packets"] += stop - max(first, number)
                self.next = max(number, stop)
                self._skip(number - self._part_count)
            else:
                return

    def _append_run(self, run: Run, out: list[Frame], now: float) -> bool:
        """Add the next packets in order to their frame, if they are what comes next of it.

        Only the first was looked at: if one of them is not what it should be, the frame does not
        prove itself.
        """
        count, place, shape = run[0], run[4], run[5]
        if place != self._part_count:
            return False
        if not place:
            self._frame = shape
            self._skipping = False
        elif shape is not self._frame and shape != self._frame:
            return False
        self._parts.append(run)
        self._part_count = place = place + count
        self.next += count
        if place == shape[2]:
            self._join(out, now)
        return True

    def _take_apart(self, run: Run, out: list[Frame], now: float) -> bool:
        """Packets that do not fit are looked at one by one; whether the next one is there."""
        number = self.next
        if run[0] > 1:
            self._held.split(number, run)
            return True
        packet = run_packet(run, 0)
        head = _unpack_head(packet)
        if head[6] == number:
            self._append(head, packet, out, now)
            return True
        # It stood between others that are what they seemed to be.
        self.counters["misfits"] += 1
        self._detector.add(number, number + 1, now=now)
        return False

    def _append(self, head: tuple[Any, ...], packet: bytes, out: list[Frame], now: float) -> None:
        """The next packet in order: add it to its frame."""
        place, number = head[3], head[6]
        self.next = number + 1
        if self._skipping and place:
            if number - place < self._skipped_to:
                self.counters["orphans"] += 1  # the rest of a frame whose beginning is lost
                return
        elif place == self._part_count and (not place or head[7:] == self._frame):
            if not place:
                self._frame = head[7:]
                self._skipping = False
            self._parts.append((1, packet, 0, len(packet), place, ()))
            self._part_count += 1
            if place + 1 == head[9]:
                self._join(out, now)
            return
        # A packet of another frame stands where the next one of this frame should: one of the two
        # is not the sender's.
        self.counters["misfits"] += 1
        parts = self._part_count
        self._parts, self._part_count = [], 0
        self._frame = None
        self._ask_again(number - parts, parts + 1, now)

    def _skip(self, first: int) -> None:
        """What was next is lost, and with it the frame that it belonged to, from `first` on."""
        if not self._skipping:
            self._skipped_from = first
        if self._parts:
            self.counters["dropped_frames"] += 1
            self._parts, self._part_count = [], 0
        self._frame = None
        self._skipping = True
        self._skipped_to = self.next

    def _join(self, out: list[Frame], now: float) -> None:
        runs, self._parts = self._parts, []
        count, self._part_count = self._part_count, 0
        expected, self._frame = self._frame, None
        self._complete(join_runs(runs), count, expected, out, now)

    def _complete(
        self,
        data: bytes,
        packets: int,
        expected: tuple[Any, ...] | None,
        out: list[Frame],
        now: float,
    ) -> None:
        try:
            frame = Frame(data)
            if (frame.stream, frame.epoch) != (self.stream, self.epoch):
                raise ProtocolError("a frame of another stream")
            if (frame.first, len(data), packets, frame.count) != expected:
                raise ProtocolError("the frame is not what its packets said")
        except ProtocolError:
            self.counters["spoiled_frames"] += 1
            self._ask_again(self.next - packets, packets, now)
            return
        if self._spoiled:
            self._spoiled.clear()
        self.counters["frames"] += 1
        out.append(frame)

    def _ask_again(self, first: int, packets: int, now: float) -> None:
        """One of these packets was not the sender's, and nobody knows which: forget them all."""
        tries = self._spoiled.get(first, 0) + 1
        if tries > SPOILED_MAX or len(self._spoiled) >= SPOILED_FRAMES_MAX:
            self._spoiled.clear()
            self._skip(first)
            self.counters["dropped_frames"] += 1
            return
        self._spoiled[first] = tries
        self.next = first
        self._recent.clear()
        self._detector.add(first, first + packets, now=now)

    # --- what the sender says ---

    def _on_beat(self, beat: PacketBeat, out: list[Frame], now: float) -> None:
        self._detector.in_group_of(beat.receivers)
        self.ended = bool(beat.flags & ENDS)
        if not self.started or self._is_far(beat, now):
            return
        if beat.next < self.next:
            self._look_back(beat, now)
            return
        self._ahead_since = None
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
        self._look_at_beat(now)

    def _look_back(self, beat: PacketBeat, now: float) -> None:
        """This heartbeat is late, or another one led us to where the sender has not come.

        If all that the sender says and sends for a while lies behind, go back to it: to the first
        packet that was passed over, if it still has that.
        """
        if self._ahead_since is None:
            self._ahead_since = now
        self._tail_since = None
        if now - self._ahead_since < AHEAD_S:
            return
        self.counters["set_back"] += 1
        self._ahead_since = None
        for first, stop in self._detector.ranges():
            self._detector.arrived(first, stop, now=now)
        self._held.clear()
        self._lost.clear()
        self._spoiled.clear()
        self._beat = self.tail = None
        passed = self._skipped_from if self._skipping else beat.next
        self.next = max(beat.first, min(passed, beat.next))
        self._skip(self.next)
        self.high = beat.next
        if self.next < beat.next:
            self._detector.add(self.next, beat.next, now=now)

    def _is_far(self, beat: PacketBeat, now: float) -> bool:
        """Whether a heartbeat is from too far ahead to be believed (yet).

        One forged heartbeat could make us give up all that is still to come.  If we were really
        away for that long, the sender says the same again, and nothing that is near.
        """
        if beat.next - self.high <= JUMP_PACKETS_MAX:
            self._far_since = NEVER
            return False
        self._far_since = min(self._far_since, now)
        if now - self._far_since >= FAR_S:
            return False
        self.counters["far_packets"] += 1
        return True

    def start_from(self, beat: PacketBeat) -> None:
        """Begin with the oldest that the sender still has."""
        if not self.started:
            self.started = True
            self.next = self.high = self._skipped_from = self._skipped_to = beat.first

    def _look_at_beat(self, now: float) -> None:
        assert self._beat is not None
        next_, next_event = self._beat
        if self.next < next_:
            return
        self._beat = None
        # After a frame that came whole it is known where events are, whatever anybody says.
        if not self._skipping:
            self._tail_since = None
        elif self._tail_since is None:
            self._tail_since = now
        elif now - self._tail_since >= AHEAD_S:
            self.tail = (next_event, next_ - self._skipped_from)

    def take_tail(self, known: int) -> int:
        """One past the last event that heartbeats speak of, if they say anything new.

        The caller knows of events before `known`, which were in packets before those passed over.
        """
        next_event, packets = self.tail or (0, 0)
        self.tail = None
        return min(next_event, known + FRAME_EVENTS_MAX * packets)

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
            self._held.drop_from(next_)
            for first, stop in self._detector.ranges():
                if stop > next_:
                    self._detector.arrived(max(first, next_), stop, now=now)
            self._lost.remove(next_, max(next_, self.high))
            self.high = next_

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
        for number, packet in self._parity.on_parity(parity, self._recent):
            if len(packet) <= _PAYLOAD:
                continue
            head = _unpack_head(packet)
            if (head[0], head[4], head[5]) != self._ids or (head[1], head[6]) != (DATA, number):
                self.counters["bad_packets"] += 1
            elif self._on_packet(head, packet, out, now):
                self.counters["computed"] += 1

    # --- time ---

    @property
    def is_alone(self) -> bool:
        """Whether the sender is known to have no other receiver."""
        return self._detector.group_size == 1

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
                self._look_at_beat(now)
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
    def begun(self) -> Range:
        """The events of the frame whose packets are coming in; empty between frames."""
        frame = self._frame
        return (0, 0) if frame is None else (frame[0], frame[0] + frame[3])

    @property
    def complete(self) -> int:
        """Packets that wait for `go_on`: from the next one up to the first that is missing."""
        return int(min(self.high, self._detector.first)) - self.next if self.more else 0

    @property
    def held_bytes(self) -> int:
        """Of packets that came behind a gap."""
        return self._held.bytes

    @property
    def missing(self) -> int:
        """Packets known to exist that have not come."""
        return self._detector.missing

    @property
    def is_behind(self) -> bool:
        """Whether something is missing, or held behind what is."""
        return bool(self._detector.missing or self._held or self._beat)
