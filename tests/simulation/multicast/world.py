"""One multicast sender, its receivers, and all that happens to them, from a seed."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from meshmsg._model.event import Loss
from meshmsg._wire.packet import (
    DATA,
    DATA_HEAD,
    REPAIR,
    PacketBeat,
    PacketParity,
    PacketRequest,
    decode_packet,
)
from meshmsg.recovery.stream.ledger import row_from_positions
from meshmsg.recovery.stream.loss_detector import NEVER
from tests.simulation.multicast.network import Fault, Faults
from tests.simulation.multicast.options import MulticastOptions
from tests.simulation.multicast.publisher import Publisher
from tests.simulation.multicast.receiver import Receiver
from tests.simulation.network import Clock
from tests.simulation.options import STREAM
from tests.simulation.subscriber import Books

QUIET_AFTER_S = 120.0
LOOK_S = 0.05


class MulticastWorld:
    """All of it, from a seed."""

    def __init__(
        self,
        seed: int,
        options: MulticastOptions | None = None,
        *,
        only: Iterable[Fault] | None = None,
        trace: bool = False,
        **chosen: Any,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        drawn = MulticastOptions.draw(self.rng)
        self.options = replace(options or drawn, **chosen)
        self.clock = Clock()
        self.counters: Counter[str] = Counter()
        self.faults = Faults(only=None if only is None else frozenset(only))
        self.trace: list[str] | None = [] if trace else None
        self.left = self.options.events
        self.receivers: list[Receiver] = []
        self.gone: list[Receiver] = []
        self.publisher = Publisher(self, epoch=1)
        self.publishers = {1: self.publisher}
        self.joined = 0
        self.over_at = 0.0
        self.plan()

    # --- what will happen ---

    def plan(self) -> None:
        options, rng, clock = self.options, self.rng, self.clock
        span = max(0.02, options.events * options.pause_s / max(1, options.batch_max) * 2)
        for _ in range(options.receivers):
            late = rng.random() < options.late_join
            self.add_receiver(rng.uniform(0, span) if late else 0.0)
        if options.cut_s:
            for receiver in rng.sample(self.receivers, (options.receivers + 1) // 2):
                self.happens(rng.uniform(0, span), receiver.cut)
        if options.freeze_s:
            self.happens(rng.uniform(0, span), rng.choice(self.receivers).freeze)
        for n in range(options.sender_restarts):
            self.happens(rng.uniform(0, span) + n, self.restart_sender)
        for n in range(options.receiver_restarts):
            self.happens(rng.uniform(0, span) + n, self.restart_receiver)
        clock.at(0.0, self.publisher.pump)

    def happens(self, time: float, run: Any) -> None:
        self.over_at = max(self.over_at, time)
        self.clock.at(time, run)

    def add_receiver(self, time: float) -> None:
        # A sender that starts anew is found by its receivers over the control channel.
        one_way = not self.options.sender_restarts and self.rng.random() < self.options.one_way
        self.joined += 1
        receiver = Receiver(self, self.joined, one_way=one_way)
        self.receivers.append(receiver)
        self.happens(time, receiver.join)

    def restart_sender(self) -> None:
        """The sender's process ends at once, and another takes its place."""
        old = self.publisher
        old.alive = False
        self.note("sender: restarts")
        self.publisher = Publisher(self, epoch=old.epoch + 1)
        self.publishers[old.epoch + 1] = self.publisher
        for receiver in self.receivers:
            if receiver.alive:
                position = receiver.stream.next if receiver.stream else 0
                receiver.subscribe("resume", position, old.epoch)

    def restart_receiver(self) -> None:
        receiver = self.rng.choice(self.receivers)
        if not receiver.alive:
            return
        receiver.leave()
        self.note(f"{receiver.sub:>6}: restarts")
        self.receivers.remove(receiver)
        self.gone.append(receiver)
        if not receiver.one_way:
            self.publisher.stream.flow.release(receiver.sub, now=self.clock.now)
            self.publisher.packets.release(receiver.sub)
        self.add_receiver(self.clock.now + self.rng.uniform(0, 0.1))

    # --- watching ---

    def note(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.clock.now * 1000:10.3f} ms  {line}")

    def describe(self, packet: bytes) -> str:
        if packet[4] in (DATA, REPAIR):
            head = DATA_HEAD.unpack_from(packet)
            name = "data" if head[1] == DATA else "repair"
            return f"{name} {head[6]} (part {head[3] + 1} of {head[9]}, epoch {head[5]})"
        message = decode_packet(packet)
        if isinstance(message, PacketBeat):
            return f"beat [{message.first}, {message.next}) event {message.next_event}"
        if isinstance(message, PacketParity):
            return f"parity of {message.first}..{message.first + message.packets}"
        if isinstance(message, PacketRequest):
            return f"confirm {list(message.ranges)}"
        return "status"

    def payloads(self, epoch: int) -> list[bytes]:
        return self.publishers[epoch].payloads

    def on_books(self, receiver: Receiver, books: Books, received: int) -> None:
        """A subscriber's figures come in: the ledger reconciles at any time."""
        publisher = self.publisher
        if books.epoch != publisher.epoch:
            return
        claim = publisher.stream.flow.report(
            receiver.sub,
            received=received,
            consumed=books.consumed,
            delivered=books.delivered,
            filtered=0,
            lost=books.lost,
            stop=publisher.stream.sealed,
            now=self.clock.now,
        )
        if claim is not None:
            self.check_row(books, publisher.stream.next)

    def check_row(self, books: Books, stop: int) -> None:
        row = row_from_positions(
            STREAM,
            books.epoch,
            "s",
            start=books.start,
            stop=stop,
            consumed=books.consumed,
            delivered=books.delivered,
            filtered=0,
            lost=books.lost,
            state="live",
        )
        assert row.reconciles, f"the ledger does not reconcile: {row}"

    def check_loss(self, receiver: Receiver, loss: Loss) -> None:
        """What is reported lost is gone, or its time was up, or its sender is."""
        self.note(f"{receiver.sub:>6}: lost {loss.first}..{loss.stop}: {loss.reason}")
        self.counters[f"lost {loss.reason}"] += loss.count
        publisher = self.publishers[loss.epoch]
        if loss.reason == "gone":
            assert not publisher.alive, "gone without a restart"
            return
        if not publisher.alive:
            return
        ample = self.options.is_ample
        assert not ample, f"events {loss.first}..{loss.stop} lost, though all is kept: {loss}"
        if loss.reason in ("overflow", "expired"):
            kept = publisher.stream.first_available
            assert loss.stop <= kept, f"lost {loss.first}..{loss.stop} but kept from {kept}"
            return
        assert loss.reason == "deadline", loss.reason
        if not receiver.one_way:
            cut = self.options.cut_s or self.options.control_drop
            assert cut, "lost by deadline, though all is answered in time"
            return
        for seq in range(loss.first, loss.stop):
            self.check_gone(receiver, publisher, seq)

    def check_gone(self, receiver: Receiver, publisher: Publisher, seq: int) -> None:
        store = publisher.packets.store
        if seq < store.first_event:
            return
        at = bisect_right(publisher.frames, seq, key=lambda frame: frame[0])
        first = publisher.frames[at][1]  # of the frame's packets: one of them was waited for
        known_at = next((time for time, high in receiver.known if high > first), NEVER)
        waited = self.clock.now - known_at
        assert waited >= self.options.deadline_s - 1e-6, f"event {seq} given up after {waited:g} s"

    # --- running ---

    def is_quiet(self) -> bool:
        """Everything published was taken or reported."""
        if self.left or self.clock.now <= self.over_at:
            return False
        publisher = self.publisher
        if publisher.packets.sent < publisher.packets.store.next:
            return False
        return all(self.is_done(receiver) for receiver in self.receivers)

    def is_done(self, receiver: Receiver) -> bool:
        if not receiver.alive:
            return False
        packets, stream = receiver.packets, receiver.stream
        if receiver.one_way and packets is not None and not packets.started:
            return self.clock.now > self.over_at + 3.0  # it came after the last packet
        if packets is None or packets.epoch != self.publisher.epoch:
            return False
        if stream is None or receiver.inbox or packets.is_behind:
            return receiver.one_way and stream is None and not packets.is_behind
        return stream.next == self.publisher.stream.sealed and packets.next == packets.high

    def run(self) -> MulticastWorld:
        look_at = LOOK_S
        while not self.is_quiet():
            while self.clock.now < look_at:
                self.clock.step()
            look_at = self.clock.now + LOOK_S
            assert self.clock.now < QUIET_AFTER_S, f"not quiet after {QUIET_AFTER_S:g} s"
        for receiver in (*self.receivers, *self.gone):
            self.check_books(receiver)
        return self

    def check_books(self, receiver: Receiver) -> None:
        for books in (*receiver.closed_books, receiver.books):
            if books is None:
                continue
            self.check_row(books, self.publishers[books.epoch].stream.sealed)
            if receiver.alive and books is receiver.books:
                assert books.consumed == self.publisher.stream.sealed, "not at the tail"


def simulate(seed: int, **chosen: Any) -> MulticastWorld:
    """One world; a failure names the seed that brings it back."""
    world = MulticastWorld(seed, **chosen)
    try:
        return world.run()
    except Exception as error:
        error.add_note(f"seed {seed}: {world.options}")
        raise
