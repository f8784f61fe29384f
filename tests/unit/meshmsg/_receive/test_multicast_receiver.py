"""One multicast stream at a subscription: whose packets it takes, what it tells the sender."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg._model.errors import ConfigError
from meshmsg._model.multicast_config import Multicast
from meshmsg._receive.incoming_stream import StartAt
from meshmsg._receive.multicast_receiver import PacketSource, groups_to_join, info_of
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.packet import (
    LEAVES,
    REPAIR,
    SEALED_MAGIC,
    PacketRequest,
    PacketStatus,
    decode_packet,
)
from meshmsg.recovery.multicast.packet_receiver import AHEAD_S
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.transports.udp.multicast import Datagram
from tests.support.receiving import EPOCH, MESH, STREAM, SUB, packet_beat, packets

SENDER, OTHER = ("127.0.0.1", 4000), ("127.0.0.1", 4001)
GROUP = "239.255.7.7:30001"
SILENCE_S = 3.1
ROOM = 2_000_000


class Line:
    """A line that remembers what was sent by it."""

    window_bytes = 1_000_000

    def __init__(self) -> None:
        self.reports: list[PacketStatus] = []
        self.requests: list[PacketRequest] = []

    def report(self, packet: bytes, to: Any) -> None:
        message = decode_packet(packet)
        assert isinstance(message, PacketStatus)
        assert to in (SENDER, OTHER)
        self.reports.append(message)

    def request(self, packet: bytes, port: int) -> None:
        message = decode_packet(packet)
        assert isinstance(message, PacketRequest)
        self.requests.append(message)

    def stats(self) -> dict[str, Any]:
        return {"group": GROUP}

    @property
    def windows(self) -> list[int]:
        return [status.window_bytes for status in self.reports]


@pytest.fixture
def line() -> Line:
    return Line()


def made(line: Line, *more: Line, held_bytes: int = 1 << 20, reach: int = 0, **config: Any) -> Any:
    info = info_of(Multicast(GROUP, **config), [SENDER], reach_bytes=reach)
    lines: list[Any] = [line, *more]
    return PacketSource(info, stream_wire_id(MESH, STREAM), SUB, lines, held_bytes)


def give(
    source: PacketSource, *datagrams: bytes, now: float = 0.0, at: Any = SENDER
) -> list[tuple[int, int]]:
    """Packets come by the first line; returns the frames that they made."""
    frames = []
    for data in datagrams:
        frames += source.receive(source.lines[0], Datagram(data, max(1, len(data)), at), now)
    return [(frame.first, frame.stop) for frame in frames]


@pytest.fixture
def source(line: Line) -> PacketSource:
    """One that has heard its sender."""
    receiving: PacketSource = made(line)
    receiving.enter(EPOCH, 0)
    give(receiving, packet_beat(0, 0, receivers=2))
    return receiving


def feed(line: Line, *more: Line, start: StartAt | None = None) -> tuple[PacketSource, list[Any]]:
    """One that has no connection to its publisher, and the epochs that it has begun."""
    receiving: PacketSource = made(line, *more)
    begun: list[Any] = []

    def begin(epoch: int, packet: int, event: int, next_: int) -> None:
        begun.append((epoch, packet, event, next_))
        receiving.enter(epoch, packet)

    receiving.begin = begin
    receiving.begin_at = (start or StartAt()).for_beat(STREAM)
    return receiving, begun


# Whose packets ---------------------------------------------------------------------------------


def test_packets_become_the_frames_that_are_next(source: PacketSource) -> None:
    first, second = packets((0, 3), (3, 4))
    assert give(source, first, second) == [(0, 3), (3, 4)]


def test_packets_of_others_are_dropped(source: PacketSource) -> None:
    (packet,) = packets((0, 3))
    assert give(source, packet, at=("10.0.0.9", 4000)) == []
    assert source.counters["other_sources"] == 1
    assert give(source, packet) == [(0, 3)]


def test_sender_that_is_bound_to_every_interface_is_known_by_its_port(line: Line) -> None:
    info = info_of(Multicast(GROUP), [("0.0.0.0", 4000)])
    source = PacketSource(info, stream_wire_id(MESH, STREAM), SUB, [line], 1 << 20)  # type: ignore[list-item]
    source.enter(EPOCH, 0)
    (packet,) = packets((0, 3))
    assert give(source, packet, at=("10.0.0.9", 4001)) == []
    assert give(source, packet, at=("10.0.0.9", 4000)) == [(0, 3)]


def test_packets_of_another_epoch_wait_for_the_publisher_s_word(source: PacketSource) -> None:
    (packet,) = packets((0, 3), epoch=EPOCH + 1)
    assert give(source, packet) == []
    assert source.counters["other_epochs"] == 1
    source.enter(EPOCH + 1, 0)
    assert give(source, packet) == [(0, 3)]


def test_sealed_packets_without_a_key_are_counted(source: PacketSource) -> None:
    (packet,) = packets((0, 3))
    assert give(source, SEALED_MAGIC + packet[4:]) == []
    assert source.refused() == {"sealed_packets": 1}


def test_single_is_the_next_frame_of_our_sender_and_epoch_only(source: PacketSource) -> None:
    (packet,) = packets((0, 3))
    assert source.is_single(packet, SENDER, EPOCH, 0)
    assert not source.is_single(packet, OTHER, EPOCH, 0)
    assert not source.is_single(packet, SENDER, EPOCH + 1, 0)
    assert not source.is_single(packet, SENDER, EPOCH, 1)
    source.take_single(0.0)
    assert not source.is_single(packet, SENDER, EPOCH, 0)
    assert give(source, packets((3, 4), number=1)[0]) == [(3, 4)]


def test_nothing_is_due_before_an_epoch_is_entered(line: Line) -> None:
    source = made(line)
    assert (source.deadline(), source.report_due(), source.on_deadline(9.0)) == (NEVER, NEVER, [])
    source.report(0.0, ROOM)
    source.leave()
    assert (line.reports, source.more, source.go_on(0.0), source.complete_bytes) == (
        [],
        False,
        [],
        0,
    )


def test_missing_packets_are_asked_for_on_every_line() -> None:
    lines = [Line(), Line()]
    source = made(*lines, nack_deadline="10s")
    source.enter(EPOCH, 0)
    give(source, *packets((5, 6), number=5))
    assert source.on_deadline(1.0) == []
    assert [list(one.requests[0].ranges) for one in lines] == [[(0, 5)], [(0, 5)]]


def test_repair_of_many_frames_is_handed_on_some_at_a_time(source: PacketSource) -> None:
    late = packets(*[(n, n + 1) for n in range(1, 9)], number=1)
    assert give(source, *late) == []
    (first,) = packets((0, 1), kind=REPAIR)
    frames = give(source, first)
    assert source.more
    assert source.complete_bytes > 0
    while source.more:
        frames += [(one.first, one.stop) for one in source.go_on(0.0)]
    assert frames == [(n, n + 1) for n in range(9)]


def test_publisher_that_comes_back_brings_its_timing(source: PacketSource) -> None:
    source.renew(info_of(Multicast(GROUP, nack_deadline="100ms"), [OTHER]))
    source.enter(EPOCH + 1, 0)
    give(source, packet_beat(3, 3, epoch=EPOCH + 1), at=OTHER)
    assert source.receiver is not None
    assert source.receiver.missing == 3
    for step in range(50):
        source.on_deadline(step * 0.005)
    assert source.receiver.missing == 0


# Feeds -----------------------------------------------------------------------------------------


def test_live_feed_begins_with_the_next_first_packet(line: Line) -> None:
    source, begun = feed(line)
    whole = packets((7, 90), number=40, payload_bytes=100)
    assert give(source, whole[1]) == []  # not the first of its frame
    assert begun == []
    assert give(source, *packets((90, 93), number=60)) == [(90, 93)]
    assert begun == [(EPOCH, 60, 90, 90)]


def test_live_feed_begins_by_a_heartbeat(line: Line) -> None:
    source, begun = feed(line)
    give(source, packet_beat(60, 200, first=40, first_event=100))
    assert begun == [(EPOCH, 60, 200, 200)]


def test_feed_from_the_earliest_waits_for_what_a_heartbeat_says(line: Line) -> None:
    source, begun = feed(line, start=StartAt("earliest"))
    assert give(source, *packets((90, 93), number=60)) == []
    give(source, packet_beat(60, 200, first=40, first_event=100))
    assert begun == [(EPOCH, 40, 100, 200)]


def test_feed_listens_to_whoever_spoke_first_until_that_is_silent(line: Line) -> None:
    source, _ = feed(line)
    first, second, third = packets((0, 1), (1, 2), (2, 3))
    assert give(source, first, now=1.0) == [(0, 1)]
    assert give(source, second, now=1.5, at=OTHER) == []
    assert source.counters["other_sources"] == 1
    assert give(source, second, now=1.0 + SILENCE_S, at=OTHER) == [(1, 2)]
    assert give(source, third, now=1.1 + SILENCE_S) == []


def test_later_epoch_of_a_feed_is_entered_by_its_heartbeat_from_its_first_packet(
    line: Line,
) -> None:
    source, begun = feed(line)
    give(source, *packets((0, 1)))
    (packet,) = packets((0, 1), epoch=EPOCH + 1)
    assert give(source, packet) == []  # anybody could have sent it
    give(source, packet_beat(5, 5, epoch=EPOCH + 1))
    assert begun[1:] == [(EPOCH + 1, 0, 0, 0)]


def test_feed_goes_back_to_an_earlier_epoch_only_when_its_own_is_silent(line: Line) -> None:
    source, begun = feed(line)
    give(source, packet_beat(5, 5, epoch=EPOCH), now=1.0)
    give(source, packet_beat(0, 0, epoch=99), now=1.1)
    back = packet_beat(6, 6, epoch=EPOCH)
    give(source, back, now=1.2)
    assert source.counters["other_epochs"] == 1
    give(source, back, now=1.1 + AHEAD_S)
    assert [one[0] for one in begun] == [EPOCH, 99, EPOCH]


# Reports ---------------------------------------------------------------------------------------


def test_nothing_is_reported_before_the_sender_was_heard(line: Line) -> None:
    source = made(line)
    source.enter(EPOCH, 0)
    source.report(0.0, ROOM)
    source.leave()
    assert line.reports == []
    assert source.report_due() == pytest.approx(0.1)


def test_overfull_inbox_is_reported_as_no_room(source: PacketSource, line: Line) -> None:
    source.report(0.0, -1)
    assert line.windows == [0]


def test_room_that_opens_is_reported_at_once(source: PacketSource, line: Line) -> None:
    source.report(0.0, 100)
    source.report(0.001, 100)
    source.report(0.002, ROOM)
    source.report(0.003, ROOM)
    assert line.windows == [100, 1_000_000]


def test_reports_come_by_time_and_by_progress(source: PacketSource, line: Line) -> None:
    source.report(0.0, ROOM)
    source.report(0.05, ROOM)
    assert len(line.reports) == 1
    source.report(0.1, ROOM)
    assert len(line.reports) == 2
    quarter = 1_000_000 // 4 // source.info.packet_bytes
    give(source, *packets((quarter, quarter + 1), number=quarter - 1))
    source.report(0.101, ROOM)
    assert len(line.reports) == 3
    # What was read and waits behind a gap takes nothing from the room that there is.
    assert line.reports[-1].next == 0
    assert line.windows[-1] == 1_000_000 + quarter * source.info.packet_bytes


def test_who_is_alone_has_half_as_much_under_way(source: PacketSource, line: Line) -> None:
    for receivers, window in ((1, 500_000), (2, 1_000_000)):
        give(source, packet_beat(0, 0, receivers=receivers))
        source.report(float(receivers), ROOM)
        assert line.windows[-1] == window


def test_window_has_room_for_a_packet(line: Line) -> None:
    line.window_bytes = 1500  # type: ignore[misc]
    source = made(line, mtu=9000)
    source.enter(EPOCH, 0)
    for receivers in (1, 2):
        give(source, packet_beat(0, 0, receivers=receivers))
        source.report(float(receivers), ROOM)
        assert line.windows[-1] == source.info.packet_bytes


def test_window_closes_when_too_much_is_held_behind_a_gap(line: Line) -> None:
    ahead = packets(*[(n, n + 1) for n in range(20, 40)], number=20)
    source = made(line, held_bytes=len(b"".join(ahead)))
    source.enter(EPOCH, 0)
    give(source, packet_beat(0, 0, receivers=2), *ahead)
    source.report(0.0, ROOM)
    assert line.windows == [1_000_000]


def test_receiver_reports_in_parts_of_what_the_sender_waits_for(line: Line) -> None:
    source = made(line, reach=200_000, held_bytes=64 << 20)
    source.enter(EPOCH, 0)
    give(source, packet_beat(0, 0, receivers=2))
    source.report(0.0, ROOM)
    assert line.windows == [200_000]


def test_sender_is_told_that_we_leave(source: PacketSource, line: Line) -> None:
    give(source, *packets((0, 3)))
    source.leave()
    assert [(one.next, one.flags) for one in line.reports] == [(1, LEAVES)]


def test_figures_count_what_came_by_each_line() -> None:
    source = made(Line(), Line())
    assert [one["first"] for one in source.stats()["lines"]] == [0, 0]
    source.enter(EPOCH, 0)
    (packet,) = packets((0, 3))
    give(source, packet)
    source.receive(source.lines[1], Datagram(packet, len(packet), SENDER), 0.0)
    figures = source.stats()
    assert (figures["next"], figures["missing"]) == (1, 0)
    assert [(one["first"], one["again"]) for one in figures["lines"]] == [(1, 0), (0, 1)]


# Groups ----------------------------------------------------------------------------------------


def test_second_group_is_joined_on_its_own_interface_or_the_first() -> None:
    info = info_of(Multicast(GROUP, second="239.255.7.8:30001"), [SENDER])
    one, two = groups_to_join(info, "127.0.0.1")
    assert (one[:2], two[:2]) == (("239.255.7.7", 30001), ("239.255.7.8", 30001))
    assert one.interface == two.interface
    assert groups_to_join(info, "127.0.0.1", "127.0.0.1")[1].interface == one.interface
    with pytest.raises(ConfigError):
        groups_to_join(info, "192.0.2.1")
