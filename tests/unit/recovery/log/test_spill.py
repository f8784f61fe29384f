"""What falls out of memory while somebody wants it: on disk, bounded, gone when it was taken."""

from __future__ import annotations

from random import Random

import pytest

from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.log.faults import Faults, FaultyFiles
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.repair import find_frames
from meshmsg.recovery.log.spill import SEGMENT_BYTES_MIN, SpillLog, remove_spill
from meshmsg.recovery.stream.flow_control import FlowControl
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer
from meshmsg.recovery.stream.sender import SenderPolicy, StreamSender

EPOCH = 77
MIB = 1024 * 1024
WIRE_ID = stream_wire_id("default", "pub/a")


def frame(first: int, size: int = 100_000) -> bytes:
    return encode_frame(WIRE_ID, EPOCH, first, "t", [b"%d" % first + bytes(size)], 0)


class Bench:
    """A buffer that spills onto a disk in memory."""

    def __init__(self, bytes_max: int = 4 * MIB, ring_bytes: int = 250_000) -> None:
        self.faults = Faults()
        self.files = FaultyFiles(Random(1), self.faults)
        self.spill = SpillLog("spill", "pub/a", EPOCH, bytes_max, files=self.files)
        self.buffer = RetransmitBuffer(ring_bytes, spill=self.spill)
        self.next = 0

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.buffer.append(self.next, self.next + 1, frame(self.next))
            self.next += 1

    def on_disk(self, first: int, stop: int) -> list[int]:
        with LogReader(self.spill.folder) as reader:
            found, _, _ = find_frames(reader, EPOCH, [(first, stop)], bytes_max=1 << 40)
        return [Frame(data).first for data in found]

    def files_left(self) -> int:
        return len(self.spill.folder.segments())


def test_only_what_somebody_wants_goes_to_disk() -> None:
    bench = Bench()
    bench.append(5)
    assert (bench.spill.spilled_events, bench.files.paths()) == (0, [])
    bench.buffer.claim(4)
    bench.append(5)
    assert list(bench.spill.stored) == [(4, 8)]
    assert bench.on_disk(4, 8) == [4, 5, 6, 7]
    assert bench.buffer.first == 8
    assert bench.buffer.discarded_claimed == 0


def test_files_go_when_all_of_their_events_were_taken() -> None:
    bench = Bench()
    bench.buffer.claim(0)
    bench.append(60)
    full = bench.files_left()
    assert full > 4
    bytes_before = bench.spill.bytes
    bench.buffer.claim(30)
    assert bench.files_left() < full
    assert bench.spill.bytes < bytes_before
    assert bench.on_disk(30, 58) == list(range(30, 58))
    bench.buffer.claim(60)
    assert (bench.files_left(), bench.spill.bytes, list(bench.spill.stored)) == (1, 0, [])
    bench.append(60)
    assert bench.on_disk(60, 118) == list(range(60, 118))
    bench.buffer.claim(None)
    assert (bench.files_left(), bench.spill.bytes) == (1, 0)


def test_gap_of_what_nobody_wanted_is_no_trouble() -> None:
    bench = Bench()
    bench.buffer.claim(0)
    bench.append(10)
    bench.buffer.claim(None)
    bench.append(10)
    bench.buffer.claim(19)
    bench.append(10)
    assert list(bench.spill.stored) == [(19, 28)]
    assert bench.on_disk(19, 28) == list(range(19, 28))


def test_gate_is_shut_at_the_bound_by_those_who_need_the_disk() -> None:
    bench = Bench(bytes_max=MIB)
    flow = FlowControl(bench.buffer, None, 5.0)
    flow.admit(1, "slow", 0, now=0.0)
    flow.admit(2, "quick", 0, now=0.0)

    def report(sub: int, at: int, now: float = 1.0) -> None:
        figures = {"delivered": at, "filtered": 0, "lost": {}}
        flow.report(sub, received=at, consumed=at, stop=bench.next, now=now, **figures)  # type: ignore[arg-type]

    while not flow.is_shut():
        bench.append()
        report(2, bench.next)
    assert [claim.label for claim in flow.blockers()] == ["slow"]
    assert bench.spill.bytes < MIB + 200_000
    flow.on_deadline(now=1.0)
    assert flow.on_deadline(now=3.0) == []
    (evicted,) = flow.on_deadline(now=7.0)
    assert (evicted.label, flow.is_shut(), bench.spill.bytes) == ("slow", False, 0)
    report(1, bench.next, now=8.0)
    assert not evicted.evicted


def test_full_disk_keeps_the_frame_in_memory_until_there_is_space() -> None:
    bench = Bench()
    flow = FlowControl(bench.buffer, None, None)
    flow.admit(1, "slow", 0, now=0.0)
    bench.append(10)
    bench.faults.capacity_bytes = bench.files.used_bytes()
    bench.append(2)
    assert bench.spill.problem is not None
    assert flow.is_shut()
    assert bench.spill.counters["spill_failures"] > 0
    held = [first for first, _, _ in bench.buffer.held(0, bench.next)]
    assert bench.on_disk(0, bench.next) + held == list(range(12))
    flow.on_deadline(now=1.0)
    assert flow.is_shut()
    bench.faults.capacity_bytes = None
    flow.on_deadline(now=2.0)
    assert not flow.is_shut()
    held = [first for first, _, _ in bench.buffer.held(0, bench.next)]
    assert bench.on_disk(0, bench.next) + held == list(range(12))


@pytest.mark.parametrize("seed", range(10))
def test_disk_that_fails_now_and_then_loses_nothing(seed: int) -> None:
    bench = Bench()
    bench.files.rng.seed(seed)
    bench.faults.write_error = bench.faults.short_write = 0.2
    bench.buffer.claim(0)
    bench.append(60)
    bench.faults.write_error = bench.faults.short_write = 0.0
    bench.buffer.trim()
    held = [first for first, _, _ in bench.buffer.held(0, bench.next)]
    assert bench.on_disk(0, bench.next) + held == list(range(60))
    assert bench.buffer.bytes < 400_000


def test_sender_answers_from_the_spill_what_memory_has_not() -> None:
    spill = SpillLog("spill", "pub/a", EPOCH, 4 * MIB, files=FaultyFiles(Random(1)))
    policy = SenderPolicy("spill", 100_000, 1000, None, 1000, 1.0, 1.0)
    sender = StreamSender("pub/a", 5, EPOCH, policy, spill=spill)
    sender.admit(1, "slow", ["**"], "live", 0, 0, now=0.0)
    for n in range(10):
        sender.seal_run("t", [b"%d" % n + bytes(50_000)], 0, raw=True, now=0.0)
    answer = sender.repair(1, EPOCH, [(0, 10)], 1 << 40)
    assert (answer.in_log, answer.frames, answer.gone) == (True, [], {})
    assert answer.stored == list(spill.stored)
    newest = sender.repair(1, EPOCH, [(9, 10)], 1 << 40)
    assert (len(newest.frames), newest.in_log) == (1, False)


def test_what_is_closed_or_left_behind_is_removed() -> None:
    bench = Bench()
    bench.buffer.claim(0)
    bench.append(20)
    assert not remove_spill(bench.spill.folder)  # somebody has it
    after = bench.files.survivor(power=False)
    folder = SpillLog("spill", "pub/a", EPOCH, SEGMENT_BYTES_MIN, files=after).folder
    assert remove_spill(folder)
    assert after.paths() == []
    bench.spill.close()
    assert bench.files.paths() == []


def test_other_files_stay_in_the_folder_of_a_spill() -> None:
    bench = Bench()
    bench.buffer.claim(0)
    bench.append(20)
    after = bench.files.survivor(power=False)
    folder = SpillLog("spill", "pub/a", EPOCH, SEGMENT_BYTES_MIN, files=after).folder
    other = f"{folder.path}/orders.csv"
    file = after.open(other, write=True, create=True)
    file.write_at([b"mine"], 0)
    file.close()
    remove_spill(folder)
    assert after.paths() == [other]
    bench.spill.close()
