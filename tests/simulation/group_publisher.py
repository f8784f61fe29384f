"""The simulated publisher of a work group: the cores, and nothing that talks to sockets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from meshmsg._wire.frame import Frame, encode_frame
from meshmsg._wire.subframe import encode_work
from meshmsg.recovery.groups.group import AckRange, WorkGroup
from meshmsg.recovery.groups.member import GroupMember
from meshmsg.recovery.groups.policy import GroupPolicy
from meshmsg.recovery.stream.sender import SenderPolicy, StreamSender
from tests.simulation.group_options import (
    TICK_S,
    WIRE_ID,
    key_of,
    payload_of,
    topic_of,
)

if TYPE_CHECKING:
    from tests.simulation.group_member import SimMember
    from tests.simulation.group_world import GroupWorld


class GroupPublisher:
    """One stream with its groups."""

    def __init__(self, world: GroupWorld, number: int) -> None:
        options = world.options
        self.world = world
        self.number = number
        policy = SenderPolicy(options.overflow, options.buffer_bytes, 1500, None, 64, 0.05, 1.0)
        self.sender = StreamSender(f"p{number}/j.**", WIRE_ID + number, 1, policy)
        self.left = options.events
        self.groups: list[WorkGroup] = []
        for n in range(options.groups):
            chosen = GroupPolicy(options.order, options.max_attempts, ("j.work",))
            group = WorkGroup(f"g{n}", self.sender.buffer, 0, chosen)
            self.sender.flow.admit(-1 - n, group.name, 0, now=0.0)
            self.groups.append(group)
        #: By group: who holds what under which attempt, as said by what was sent.
        self.sent: list[dict[int, tuple[int, int]]] = [{} for _ in self.groups]
        self.attempts: list[Counter[int]] = [Counter() for _ in self.groups]
        self.dead: list[list[int]] = [[] for _ in self.groups]
        self.links: dict[int, SimMember] = {}
        self.seen_at: dict[int, float] = {}
        world.clock.at(0.0, self.publish)
        world.clock.at(TICK_S, self.tick)

    # --- publishing ---

    def publish(self) -> None:
        world, options = self.world, self.world.options
        if not self.sender.flow.is_shut() and self.left:
            count = min(self.left, world.rng.randint(1, options.frame_events))
            self.left -= count
            first = self.sender.builder.first
            seqs = range(first, first + count)
            keys = {seq - first: key_of(seq, options.keys) for seq in seqs}
            frame = encode_frame(
                self.sender.wire_id,
                1,
                first,
                [topic_of(seq) for seq in seqs],
                [payload_of(self.number, seq) for seq in seqs],
                0,
                keys={i: key for i, key in keys.items() if key is not None},
            )
            self.sender.builder.reserve(count)
            self.sender._keep(frame, first, first + count, world.clock.now)
            self.dispatch()
        if self.left:
            world.clock.at(world.clock.now + 0.002, self.publish)

    def dispatch(self) -> None:
        now = self.world.clock.now
        for index, group in enumerate(self.groups):
            for number, work in group.dispatch(self.sender.sealed, now=now):
                member = self.links[number]
                frame = Frame(work.data)
                places = range(work.lo, work.hi) if work.chosen is None else work.chosen
                attempts = work.attempts or [work.attempt] * len(places)
                for place, attempt in zip(places, attempts, strict=True):
                    self.check_sent(index, group, frame, place, attempt, number)
                member.send_work(self, encode_work(number, work))
            self.dead[index] += [letter.seq for letter in group.dead_letters]
            for letter in group.dead_letters:
                assert letter.trouble.counted == self.world.options.max_attempts
                assert len(letter.trouble.members) <= letter.trouble.attempt
            group.dead_letters.clear()
            group.losses.clear()
            self.sender.flow.report(
                -1 - index,
                received=group.floor,
                consumed=group.floor,
                delivered=0,
                filtered=0,
                lost={},
                stop=self.sender.next,
                now=now,
            )
            self.check_books(group)

    def check_sent(
        self, index: int, group: WorkGroup, frame: Frame, place: int, attempt: int, number: int
    ) -> None:
        seq = frame.first + place
        assert frame.payload_at(place) == payload_of(self.number, seq)
        assert frame.topic_at(place) == "j.work", "filtered events are for nobody"
        assert frame.key_at(place) == key_of(seq, self.world.options.keys)
        before = self.attempts[index][seq]
        assert attempt >= before, "an attempt before the last one"
        assert attempt > before or seq in self.world.returned[self.number, index]
        self.world.returned[self.number, index].discard(seq)
        self.attempts[index][seq] = attempt
        self.sent[index][seq] = (number, attempt)
        member = group.members[number]
        assert member.in_flight <= member.prefetch, "more than the credit"
        if self.world.options.order == "key":
            self.check_order(index, group, seq)

    def check_order(self, index: int, group: WorkGroup, seq: int) -> None:
        """All earlier events of its key must be settled."""
        key = key_of(seq, self.world.options.keys)
        if key is None:
            return
        for earlier in range(group.floor, seq):
            same = key_of(earlier, self.world.options.keys) == key
            if same and topic_of(earlier) == "j.work":
                assert earlier in group._settled, f"{seq} was sent before {earlier} of its key"

    def check_books(self, group: WorkGroup) -> None:
        told = group.acked + group.filtered + group.dead + group.lost.total()
        open_ = group.pending(self.sender.next) + group.in_flight
        assert told + open_ == self.sender.next - group.start, "the ledger does not reconcile"
        if self.world.options.overflow in ("buffer", "block"):
            assert not group.lost, "lost though the publisher waits for the group"

    # --- members ---

    def on_join(self, member: SimMember) -> None:
        now = self.world.clock.now
        options = self.world.options
        self.links[member.number] = member
        self.seen_at[member.number] = now
        group = self.groups[member.group]
        group.join(
            member.number, f"m{member.number}", options.prefetch, options.ack_timeout_s, now=now
        )
        self.dispatch()

    def on_settle(
        self,
        member: SimMember,
        acks: list[AckRange],
        nacks: list[tuple[int, int]],
        returned: list[AckRange],
        closed: bool,
    ) -> None:
        now = self.world.clock.now
        group = self.groups[member.group]
        if member.number not in group.members:
            self.world.counters["stale"] += 1
            member.on_unjoined(self)
            return
        self.seen_at[member.number] = now
        stale = group.ack(member.number, acks, now=now)
        self.world.counters["stale"] += stale
        for seq, attempt in nacks:
            group.nack(member.number, seq, attempt, 0.01, "no", now=now)
        group.give_back(member.number, returned, now=now)
        if closed:
            self.drop(member.number, "left")
        self.dispatch()

    def drop(self, number: int, reason: str) -> None:
        member = self.links.pop(number, None)
        if member is None:
            return
        group = self.groups[member.group]
        held = seqs_of(group.members[number])
        self.world.suspect(self.number, member.group, held)
        group.leave(number, reason, now=self.world.clock.now)
        self.dispatch()

    def tick(self) -> None:
        now = self.world.clock.now
        for number, member in list(self.links.items()):
            if now - self.seen_at[number] > self.world.options.suspect_s:
                self.drop(number, "silent")
                member.on_unjoined(self)
        for index, group in enumerate(self.groups):
            if group.deadline() <= now:
                before = {n: seqs_of(member) for n, member in group.members.items()}
                group.on_deadline(now=now)
                for number, held in before.items():
                    self.world.suspect(self.number, index, held - seqs_of(group.members[number]))
        self.dispatch()
        self.world.clock.at(now + TICK_S, self.tick)

    def is_quiet(self) -> bool:
        return not self.left and all(g.floor == self.sender.next for g in self.groups)


def seqs_of(member: GroupMember) -> set[int]:
    """The events that a member holds."""
    return {seq for first, stop, _ in member.holdings() for seq in range(first, stop)}
