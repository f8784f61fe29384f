"""Which groups a subscription joins and leaves, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from meshmsg._model.multicast_config import Feed, Multicast
from meshmsg._receive import multicast_groups as module
from meshmsg._receive.incoming_stream import Source, StartAt
from meshmsg._receive.multicast_groups import Tuner
from meshmsg._receive.multicast_receiver import info_of
from meshmsg._wire.multicast_info import MulticastInfo
from meshmsg.transports.udp.multicast import Datagram, MulticastClient
from tests.scenarios.multicast.conftest import new_group
from tests.support.receiving import (
    EPOCH,
    STREAM,
    Receiving,
    admission,
    packet_beat,
    packets,
    receiving,
)


@pytest.fixture
def side() -> Iterator[Receiving]:
    with receiving() as made:
        yield made


@pytest.fixture
def tuner(side: Receiving) -> Tuner:
    return side.intake.tuner


def told(group: str = "", **config: Any) -> MulticastInfo:
    return info_of(Multicast(group or new_group(), **config), [("127.0.0.1", 4000)])


def groups(side: Receiving) -> set[str]:
    return {f"{group.host}:{group.port}" for group in side.intake.reading.lines}


def feed(group: str = "", topics: str = "a.**") -> Feed:
    return Feed("pub", topics, Multicast(group or new_group()), name="a")


def data_lines(side: Receiving) -> int:
    """Descriptors that the subscription waits for beside ZeroMQ's socket."""
    return len(side.intake.arrival_fds) - 1


def test_announced_stream_has_its_group_joined(side: Receiving) -> None:
    info = told()
    source = side.source(multicast=info)
    assert groups(side) == {info.group}
    assert data_lines(side) == 1
    assert source.packets is not None
    assert source.packets.info == info


def test_both_groups_of_a_stream_with_two_lines_are_joined(side: Receiving) -> None:
    side.source(multicast=told(second=new_group()))
    assert data_lines(side) == 2


def test_stream_that_is_announced_again_keeps_its_sockets(side: Receiving, tuner: Tuner) -> None:
    info = told()
    source = side.source(multicast=info)
    packets_before, fds = source.packets, side.intake.arrival_fds
    renewed = info_of(Multicast(info.group), [("127.0.0.1", 4999)])
    tuner.tune_in(source, renewed)
    assert source.packets is packets_before
    assert source.packets is not None
    assert source.packets.info == renewed
    assert side.intake.arrival_fds == fds


def test_stream_that_moves_to_another_group_leaves_the_first(side: Receiving, tuner: Tuner) -> None:
    source = side.source(multicast=told())
    there = told()
    tuner.tune_in(source, there)
    assert groups(side) == {there.group}
    assert data_lines(side) == 1


def test_group_of_two_streams_is_left_with_the_last(side: Receiving, tuner: Tuner) -> None:
    info = told()
    one, other = (side.source(name, multicast=info) for name in (STREAM, "pub/b"))
    assert data_lines(side) == 1
    tuner.tune_out(one, 0.0)
    assert groups(side) == {info.group}
    assert one.packets is None
    tuner.tune_out(other, 0.0)
    assert data_lines(side) == 0
    tuner.tune_out(other, 0.0)  # harmless


def test_stream_that_comes_back_over_tcp_leaves_its_group(side: Receiving) -> None:
    side.source(multicast=told())
    side.source()
    assert data_lines(side) == 0


@pytest.mark.parametrize(
    "group", ["239.255.0.1", "10.0.0.1:3000", "127.0.0.1:4000", "nonsense", ":1"]
)
def test_group_that_cannot_be_joined_costs_nothing_but_multicast(
    side: Receiving, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = side.source(multicast=replace(told(), group=group))
    assert source.packets is None
    assert data_lines(side) == 0
    assert side.intake.counters["join_errors"] == 1
    assert "cannot join" in caplog.text


def test_where_the_second_group_cannot_be_joined_the_first_is_left(
    side: Receiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def once(*given: Any) -> MulticastClient:
        if opened:
            raise OSError("too many open files")
        opened.append(MulticastClient(*given))
        return opened[0]  # type: ignore[no-any-return]

    monkeypatch.setattr(module, "multicast_client", once)
    source = side.source(multicast=told(second=new_group()))
    assert source.packets is None
    assert groups(side) == set()
    assert data_lines(side) == 0


def test_publishers_announce_only_so_many_groups(
    side: Receiving, tuner: Tuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 1)
    first = told()
    side.source(multicast=first)
    assert side.source("pub/b", multicast=told()).packets is None
    assert side.source("pub/c", multicast=first).packets is not None  # it costs nothing more
    tuner.join(Feed("other", "a.**", Multicast(new_group())), None, Any)  # by hand: no limit
    assert data_lines(side) == 2
    assert side.intake.counters["join_errors"] == 1


def test_epoch_that_is_over_or_recorded_has_no_packets(side: Receiving, tuner: Tuner) -> None:
    source = side.source(multicast=told())
    assert source.packets is not None
    for one in (admission(over=True), admission(recorded=True)):
        tuner.enter(source, one)
        assert source.packets.receiver is None
    tuner.enter(source, admission(packet=17))
    assert source.packets.receiver is not None
    assert (source.packets.receiver.epoch, source.packets.receiver.next) == (EPOCH, 17)


# Feeds -----------------------------------------------------------------------------------------


def joined(side: Receiving, one: Feed) -> Source:
    side.intake.tuner.join(one, None, Any)
    return side.intake.incoming.by_name[one.stream]


def hear(side: Receiving, *datagrams: bytes) -> None:
    """Packets of a sender come by the only line."""
    (line,) = side.intake.reading.lines.values()
    for data in datagrams:
        side.intake.reading.on_datagram(line, Datagram(data, len(data), ("127.0.0.1", 4000)), 0.0)


def test_feed_is_received_from_a_publisher_that_nobody_is_connected_to(side: Receiving) -> None:
    source = joined(side, feed())
    assert (source.info.name, source.link, data_lines(side)) == (STREAM, None, 1)
    hear(side, *packets((0, 2), (2, 3)))
    assert side.taken() == [(EPOCH, 0, 2), (EPOCH, 2, 3)]


def test_feed_that_starts_with_the_earliest_has_what_the_sender_still_has() -> None:
    with receiving(StartAt("earliest")) as side:
        source = joined(side, feed())
        hear(side, packet_beat(8, 20, first=5, first_event=12))
        assert source.receiver is not None
        assert (source.receiver.start, source.heard_next) == (12, 20)


def test_feed_that_was_named_already_is_not_joined_again(side: Receiving) -> None:
    source = joined(side, feed())
    assert joined(side, feed()) is source
    assert data_lines(side) == 1


def test_packets_are_lost_on_purpose_on_one_line_or_all(side: Receiving, tuner: Tuner) -> None:
    def lose(packet: bytes) -> bool:
        return True

    one, other = told(), told()
    side.source(multicast=one)
    (first,) = side.intake.reading.lines.values()
    tuner.set_fault(lose, (first.group.host, first.group.port))
    side.source("pub/b", multicast=other)
    faults = {f"{g.host}:{g.port}": line.fault for g, line in side.intake.reading.lines.items()}
    assert faults == {one.group: lose, other.group: None}
    tuner.set_fault(lose)
    assert all(line.fault is lose for line in side.intake.reading.lines.values())
    tuner.set_fault(None)
    assert all(line.fault is None for line in side.intake.reading.lines.values())
