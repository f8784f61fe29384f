"""What one subscription tells the sender of a multicast stream."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg._model.multicast_config import Multicast
from meshmsg._receive.multicast_receiver import PacketSource, info_of
from meshmsg._wire.packet import PacketBeat, PacketStatus, decode_packet

SENDER = ("127.0.0.1", 4000)


class Line:
    """A line that remembers what was reported."""

    window_bytes = 1_000_000

    def __init__(self) -> None:
        self.reports: list[PacketStatus] = []

    def report(self, packet: bytes, to: Any) -> None:
        message = decode_packet(packet)
        assert isinstance(message, PacketStatus)
        self.reports.append(message)


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def source(line: Line) -> PacketSource:
    made = PacketSource(
        info_of(Multicast("239.255.7.7:30001"), [SENDER]),
        7,
        1,
        [line],  # type: ignore[list-item]
        1 << 20,
    )
    made.enter(9, 0)
    made._sender = SENDER
    return made


def test_overfull_inbox_is_reported_as_no_room(source: PacketSource, line: Line) -> None:
    source.report(0.0, -1)
    assert [status.window_bytes for status in line.reports] == [0]


def test_room_that_opens_is_reported_at_once(source: PacketSource, line: Line) -> None:
    source.report(0.0, 100)
    source.report(0.001, 100)
    source.report(0.002, 2_000_000)
    source.report(0.003, 2_000_000)
    assert [status.window_bytes for status in line.reports] == [100, 1_000_000]


def test_reports_come_by_time_and_by_progress(source: PacketSource, line: Line) -> None:
    source.report(0.0, 2_000_000)
    source.report(0.05, 2_000_000)
    assert len(line.reports) == 1
    source.report(0.1, 2_000_000)
    assert len(line.reports) == 2
    assert source.receiver is not None
    source.receiver.high = read = 1_000_000 // 4 // source.info.packet_bytes
    source.report(0.101, 2_000_000)
    assert len(line.reports) == 3
    # What was read and waits behind a gap takes nothing from the room that there is.
    assert line.reports[-1].next == 0
    assert line.reports[-1].window_bytes == 1_000_000 + read * source.info.packet_bytes


def test_who_is_alone_has_half_as_much_under_way(source: PacketSource, line: Line) -> None:
    assert source.receiver is not None
    for receivers, window in ((1, 500_000), (2, 1_000_000)):
        beat = PacketBeat(7, 9, 0, 0, 0, 0, receivers, 0).encode()
        source.receiver.receive(beat, len(beat), now=0.0)
        source.report(float(receivers), 2_000_000)
        assert line.reports[-1].window_bytes == window


def test_window_has_room_for_a_packet(line: Line) -> None:
    line.window_bytes = 1500  # type: ignore[misc]
    info = info_of(Multicast("239.255.7.7:30001", mtu=9000), [SENDER])
    source = PacketSource(info, 7, 1, [line], 1 << 20)  # type: ignore[list-item]
    source.enter(9, 0)
    source._sender = SENDER
    assert source.receiver is not None
    for receivers in (1, 2):
        beat = PacketBeat(7, 9, 0, 0, 0, 0, receivers, 0).encode()
        source.receiver.receive(beat, len(beat), now=0.0)
        source.report(float(receivers), 2_000_000)
        assert line.reports[-1].window_bytes == info.packet_bytes


def test_window_closes_when_too_much_is_held_behind_a_gap(source: PacketSource, line: Line) -> None:
    assert source.receiver is not None
    source.receiver.high = 500
    source.receiver._held.bytes = source._held_bytes_max
    source.report(0.0, 2_000_000)
    assert line.reports[-1].window_bytes == 1_000_000


def test_publisher_that_comes_back_brings_its_timing(source: PacketSource) -> None:
    source.renew(info_of(Multicast("239.255.7.7:30001", nack_deadline="100ms"), [SENDER]))
    source.enter(10, 0)
    assert source.receiver is not None
    beat = PacketBeat(7, 10, 3, 0, 0, 3, 1, 0).encode()
    source.receiver.receive(beat, len(beat), now=0.0)
    assert source.receiver.missing == 3
    for step in range(50):
        source.receiver.on_deadline(now=step * 0.005)
    assert source.receiver.missing == 0


def test_receiver_reports_in_parts_of_what_the_sender_waits_for(line: Line) -> None:
    info = info_of(Multicast("239.255.7.7:30001"), [SENDER], reach_bytes=200_000)
    source = PacketSource(info, 7, 1, [line], 64 << 20)  # type: ignore[list-item]
    assert source._window_max == 200_000
