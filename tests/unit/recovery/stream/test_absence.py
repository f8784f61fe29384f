"""Who is away is waited for, kept for, and forgotten, each in its own time."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg.recovery.stream.absence import Absence
from meshmsg.recovery.stream.flow_control import Claim, FlowControl
from meshmsg.recovery.stream.ranges import RangeSet
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer
from meshmsg.recovery.stream.sender import SenderPolicy, StreamSender

WAIT_S = 30.0
RETURN_S = 300.0
FRAME = b"x" * 100
BUFFER_BYTES = 1000


class Disk:
    """A spill of so many frames."""

    def __init__(self, frames_max: int) -> None:
        self.stored = RangeSet()
        self.frames_max = frames_max

    def take(self, first: int, stop: int, frame: bytes) -> bool:
        self.stored.add(first, stop)
        return True

    def release(self, floor: int | None) -> None:
        self.stored.discard_before(self.stored.bounds[1] if floor is None else floor)

    def is_full(self) -> bool:
        return self.stored.count > self.frames_max


def sender_of(overflow: str, disk: Disk | None = None) -> StreamSender:
    policy = SenderPolicy(overflow, BUFFER_BYTES, BUFFER_BYTES, None, 1, 1.0, 1.0)
    return StreamSender("p/a.**", 7, 1700, policy, spill=disk)


def admit(sender: StreamSender, sub: int, kind: str = "live", value: int = 0, **more: Any) -> Claim:
    sender.admit(sub, f"s{sub}", ["a.**"], kind, value, 1700, now=0.0, **more)
    return sender.flow.claims[sub]


def publish(sender: StreamSender, count: int) -> None:
    for _ in range(count):
        assert sender.seal_run("a", [FRAME], 0, raw=True, now=0.0) is not None


def leave(sender: StreamSender, claim: Claim, *, waited: bool = False) -> None:
    sender.flow.leave(claim, 1.0, attached=waited, waited=waited, now=1.0)


def read(sender: StreamSender, sub: int, stop: int) -> None:
    sender.flow.report(
        sub,
        received=stop,
        consumed=stop,
        delivered=stop,
        filtered=0,
        lost={},
        stop=sender.next,
        now=1.0,
    )


# Its times -------------------------------------------------------------------------------------


def test_one_that_is_there_is_waited_for_and_never_forgotten() -> None:
    absence = Absence()
    assert absence.since is None
    assert absence.is_waited_for(WAIT_S, now=1e9)
    assert not absence.is_over(RETURN_S, now=1e9)


def test_silent_one_is_waited_for_while_its_connection_stands_and_kept_for_longer() -> None:
    absence = Absence(silent_since=100.0)
    assert absence.is_waited_for(WAIT_S, now=129.9)
    assert not absence.is_waited_for(WAIT_S, now=130.0)
    assert not absence.is_over(RETURN_S, now=399.9)
    assert absence.is_over(RETURN_S, now=400.0)


def test_closed_connection_ends_the_waiting_at_once_and_not_the_keeping() -> None:
    absence = Absence(detached_at=100.0)
    assert not absence.is_waited_for(WAIT_S, now=100.0)
    assert not absence.is_over(RETURN_S, now=399.9)
    assert absence.is_over(RETURN_S, now=400.0)


def test_it_is_away_since_the_first_of_both() -> None:
    assert Absence(silent_since=95.0, detached_at=100.0).since == 95.0
    assert Absence(silent_since=101.0, detached_at=100.0).since == 100.0


# The stream ------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", ["block", "buffer"])
def test_silent_one_that_is_waited_for_holds_the_stream_and_all_of_its_events(
    overflow: str,
) -> None:
    sender = sender_of(overflow)
    claim = admit(sender, 1)
    leave(sender, claim, waited=True)
    publish(sender, 10)
    assert sender.flow.is_shut()
    assert sender.flow.blockers() == [claim]
    assert sender.first_available == 0
    assert claim.state == "away"


@pytest.mark.parametrize("overflow", ["block", "buffer"])
def test_absent_one_holds_nobody_up_and_finds_what_the_buffer_has(overflow: str) -> None:
    sender = sender_of(overflow)
    claim = admit(sender, 1)
    leave(sender, claim)
    publish(sender, 3)
    assert not sender.flow.is_shut()
    assert sender.flow.behind(3) == []
    assert sender.flow.aside() == [1]
    sender.flow.come_back(claim, now=2.0)
    assert sender.flow.behind(3) == [claim]
    assert claim.state == "live"
    answer = sender.repair(1, 1700, [(0, 3)], 1 << 20)
    assert (len(answer.frames), answer.gone) == (3, {})


@pytest.mark.parametrize("overflow", ["block", "buffer"])
def test_one_that_is_back_is_waited_for_at_once_while_it_catches_up(overflow: str) -> None:
    sender = sender_of(overflow)
    claim = admit(sender, 1)
    leave(sender, claim)
    publish(sender, 4)
    sender.flow.come_back(claim, now=2.0)
    publish(sender, 10)
    assert sender.flow.is_shut()
    assert sender.first_available == 0


@pytest.mark.parametrize("overflow", ["block", "buffer"])
def test_what_an_absent_one_misses_is_lost_as_away_and_the_rest_is_not(overflow: str) -> None:
    sender = sender_of(overflow)
    claim = admit(sender, 1)
    leave(sender, claim)
    publish(sender, 20)
    first = sender.first_available
    assert first > 0
    assert sender.repair(1, 1700, [(0, 5)], 1 << 20).gone == {"away": [(0, 5)]}
    sender.flow.come_back(claim, now=2.0)
    assert sender.repair(1, 1700, [(0, 20)], 1 << 20).gone == {"away": [(0, first)]}


def test_where_words_drop_it_is_an_overflow_whether_somebody_is_absent_or_not() -> None:
    sender = sender_of("drop_oldest")
    claim = admit(sender, 1)
    leave(sender, claim)
    publish(sender, 20)
    sender.flow.come_back(claim, now=2.0)
    assert set(sender.repair(1, 1700, [(0, 20)], 1 << 20).gone) == {"overflow"}


def test_one_that_was_forgotten_and_returns_lost_by_its_absence() -> None:
    sender = sender_of("block")
    publish(sender, 20)
    first = sender.first_available
    admit(sender, 1, "resume", 3, returns=True)
    assert sender.repair(1, 1700, [(3, 20)], 1 << 20).gone == {"away": [(3, first)]}


def test_one_that_was_never_here_and_starts_too_early_finds_it_expired() -> None:
    sender = sender_of("block")
    publish(sender, 20)
    first = sender.first_available
    admit(sender, 1, "resume", 3)
    assert sender.repair(1, 1700, [(3, 20)], 1 << 20).gone == {"expired": [(3, first)]}


# The spill -------------------------------------------------------------------------------------


def test_spill_keeps_for_one_that_is_absent() -> None:
    disk = Disk(1000)
    sender = sender_of("spill", disk)
    claim = admit(sender, 1)
    leave(sender, claim)
    publish(sender, 100)
    assert disk.stored.bounds[0] == 0
    assert sender.repair(1, 1700, [(0, 2)], 1 << 20).stored == [(0, 2)]
    sender.flow.release(1, now=2.0)
    assert not disk.stored


def test_full_spill_gives_up_the_absent_one_furthest_behind_and_nobody_else() -> None:
    disk = Disk(50)
    sender = sender_of("spill", disk)
    far, near = admit(sender, 1), admit(sender, 2)
    publish(sender, 30)
    read(sender, 2, 30)
    leave(sender, far)
    leave(sender, near)
    publish(sender, 30)
    assert sender.flow.is_shut()
    assert sender.flow.blockers() == []
    sender.flow.on_deadline(now=2.0)
    assert not sender.flow.is_shut()
    assert disk.stored.bounds[0] == 30
    sender.flow.come_back(far, now=3.0)
    assert sender.repair(1, 1700, [(0, 2)], 1 << 20).gone == {"away": [(0, 2)]}


def test_full_spill_waits_for_one_that_is_there_and_takes_nothing_from_the_absent() -> None:
    disk = Disk(50)
    sender = sender_of("spill", disk)
    there, absent = admit(sender, 1), admit(sender, 2)
    publish(sender, 10)
    read(sender, 2, 10)
    leave(sender, absent)
    publish(sender, 60)
    sender.flow.on_deadline(now=2.0)
    assert sender.flow.is_shut()
    assert sender.flow.blockers() == [there]
    assert absent.kept


def test_absent_one_does_not_count_where_nothing_is_kept() -> None:
    flow = FlowControl(RetransmitBuffer(1000, hold=True), 100, None)
    claim = flow.admit(1, "one", 0, now=0.0)
    flow.leave(claim, 0.0, attached=False, waited=False, now=0.0)
    assert flow.on_deadline(now=1e6) == []
    assert claim.kept
