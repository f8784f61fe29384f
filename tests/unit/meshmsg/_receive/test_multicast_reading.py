"""What a subscription reads from its multicast groups, and how much of it at a time."""

from __future__ import annotations

import select
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg._model.event import Loss
from meshmsg._model.multicast_config import Feed, Multicast
from meshmsg._receive.incoming_stream import Source
from meshmsg._receive.multicast_reading import OTHERS_TOLD, PacketReading
from meshmsg._receive.multicast_receiver import info_of
from meshmsg._wire.packet import HEAD, REPAIR
from meshmsg.transports.udp.multicast import Datagram, MulticastClient, MulticastServer
from tests.scenarios.multicast.conftest import new_group
from tests.support.receiving import (
    EPOCH,
    STREAM,
    Receiving,
    admission,
    data,
    packet_beat,
    packets,
    receiving,
)

LO = "127.0.0.1"
SENDER = (LO, 4000)
WAIT_S = 30.0


@pytest.fixture
def side() -> Iterator[Receiving]:
    with receiving(inbox_bytes_max=4096) as made:
        yield made


@pytest.fixture
def reading(side: Receiving) -> PacketReading:
    return side.intake.reading


def stream(side: Receiving, name: str = STREAM, group: str = "") -> Source:
    """A stream that was announced with a group, and its epoch entered."""
    given = info_of(Multicast(group or new_group()), [SENDER])
    source = side.source(name, multicast=given)
    side.intake.epochs.on_admission(source, admission(name=name), 0.0)
    return source


def feed(side: Receiving) -> Source:
    """A stream from a publisher that nobody is connected to."""
    side.intake.tuner.join(Feed("pub", "a.**", Multicast(new_group()), name="a"), None, Any)
    return side.intake.incoming.by_name[STREAM]


def line_of(reading: PacketReading, at: int = 0) -> MulticastClient:
    return list(reading.lines.values())[at]


def hear(side: Receiving, *datagrams: bytes, now: float = 0.0) -> None:
    reading = side.intake.reading
    for one in datagrams:
        reading.on_datagram(line_of(reading), Datagram(one, max(1, len(one)), SENDER), now)


# From the network ------------------------------------------------------------------------------


@pytest.fixture
def sender(side: Receiving) -> Iterator[MulticastServer]:
    config = Multicast(new_group())
    server = MulticastServer(config, LO)
    source = side.source(multicast=info_of(config, server.sources))
    side.intake.epochs.on_admission(source, admission(), 0.0)
    yield server
    server.close()


def send(reading: PacketReading, server: MulticastServer, *datagrams: bytes) -> None:
    for one in datagrams:
        server.send(one, len(one))
    assert select.select([line_of(reading).fd], [], [], WAIT_S)[0]


def test_packets_are_read_until_something_is_ready(
    side: Receiving, reading: PacketReading, sender: MulticastServer
) -> None:
    send(reading, sender, *packets((0, 2), (2, 3)))
    assert not reading.read(0.0, False)  # one frame at a time, for who waits for it
    assert side.taken() == [(EPOCH, 0, 2)]
    while not reading.read(0.0, True):
        pass
    assert side.taken() == [(EPOCH, 2, 3)]
    assert reading.read(0.0, True)


def test_without_room_nothing_is_read(
    side: Receiving, reading: PacketReading, sender: MulticastServer
) -> None:
    side.intake.ready.backlog_bytes = 4096
    send(reading, sender, *packets((0, 2)))
    assert not reading.read(5.0, True)
    reading.keep_up(5.0)
    assert side.intake.ready.full_at == 5.0
    assert side.taken() == []


def test_beside_what_is_ready_a_little_is_read(
    side: Receiving, reading: PacketReading, sender: MulticastServer
) -> None:
    side.intake.ready.put(side.intake.incoming.by_name[STREAM], [Loss(STREAM, EPOCH, 0, 0, "x")])
    send(reading, sender, *packets((0, 2)))
    reading.keep_up(0.0)
    assert side.taken()[1:] == [(EPOCH, 0, 2)]


# Whose they are --------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [b"x", b"x" * 100, data(0, 2)])
def test_noise_is_counted(side: Receiving, noise: bytes) -> None:
    stream(side)
    hear(side, noise)
    assert side.intake.counters["bad_packets"] == 1
    assert side.taken() == []


def test_empty_datagram_is_nothing(side: Receiving) -> None:
    stream(side)
    hear(side, b"")
    assert not side.intake.counters["bad_packets"]


def test_who_hears_others_only_is_told_what_may_be_misspelt(
    side: Receiving, reading: PacketReading, caplog: pytest.LogCaptureFixture
) -> None:
    feed(side)
    (problem,) = reading.unheard()
    assert "nothing was heard of pub/a" in problem
    for _ in range(OTHERS_TOLD):
        assert not caplog.records
        hear(side, *packets((0, 2), name="pubb/a"))
    assert f"but {OTHERS_TOLD} packets of other streams were" in caplog.text
    hear(side, *packets((0, 2)))
    assert reading.unheard() == []


def test_packet_that_fails_costs_itself(side: Receiving, monkeypatch: pytest.MonkeyPatch) -> None:
    source = stream(side)
    assert source.packets is not None

    def fail(*_: Any) -> Any:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(source.packets, "receive", fail)
        hear(side, *packets((0, 2)))
    assert side.intake.counters["io_errors"] == 1
    hear(side, *packets((0, 2)))
    assert side.taken() == [(EPOCH, 0, 2)]


# The quick way ---------------------------------------------------------------------------------


def datagram(one: bytes, packet_bytes: int = 0) -> Datagram:
    return Datagram(one, packet_bytes or len(one), SENDER)


def test_frame_that_is_a_packet_and_the_next_is_known_at_a_glance(
    side: Receiving, reading: PacketReading
) -> None:
    source = stream(side)
    first, second, third = packets((0, 2), (2, 3), (3, 4))
    hear(side, first)  # by this one the sender is known
    assert reading.single(datagram(second)) is None  # one is ready before it
    assert side.taken() == [(EPOCH, 0, 2)]
    assert reading.single(datagram(second)) is source.packets
    assert reading.single(datagram(third)) is None
    assert reading.single(datagram(second + third, len(second))) is None
    assert reading.single(datagram(second[: HEAD.size])) is None
    assert reading.single(datagram(packets((2, 3), number=1, kind=REPAIR)[0])) is None


def test_only_line_is_the_one_that_all_streams_come_by(
    side: Receiving, reading: PacketReading
) -> None:
    source = stream(side)
    reading.find_only_line()
    assert reading.only_line is line_of(reading)
    other = stream(side, "pub/b")
    reading.find_only_line()
    assert reading.only_line is None
    side.intake.tuner.tune_out(other, 0.0)
    reading.find_only_line()
    assert reading.only_line is None  # what comes over TCP comes by none
    side.intake.tuner.tune_out(source, 0.0)
    assert reading.lines == {}


# Gaps and the backlog --------------------------------------------------------------------------


def behind_a_gap(side: Receiving, count: int) -> None:
    """So many frames complete, but for the first, which comes now."""
    hear(side, packet_beat(0, 0))
    hear(side, *packets(*[(n, n + 1) for n in range(1, count)], number=1))
    assert side.taken() == []
    hear(side, *packets((0, 1), kind=REPAIR))


def test_what_a_repair_completes_is_put_together_as_it_is_taken(
    side: Receiving, reading: PacketReading
) -> None:
    source = stream(side)
    behind_a_gap(side, 20)
    assert reading.backlog == [source]
    assert 0 < len(side.intake.ready.items) < 20
    room = side.intake.ready.room
    assert side.intake.ready.backlog_bytes > 0
    assert side.taken() == [(EPOCH, n, n + 1) for n in range(20)]
    assert (reading.backlog, side.intake.ready.backlog_bytes) == ([], 0)
    assert side.intake.ready.room > room


def test_epoch_that_ends_has_all_of_its_backlog_put_together(
    side: Receiving, reading: PacketReading
) -> None:
    source = stream(side)
    behind_a_gap(side, 20)
    reading.put_all_together(source, 0.0)
    assert reading.backlog == []
    assert len(side.intake.ready.items) == 20


def test_backlog_that_fails_is_not_tried_for_ever(
    side: Receiving, reading: PacketReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = stream(side)
    behind_a_gap(side, 20)

    def fail(now: float) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(source.packets, "go_on", fail)
    reading.put_all_together(source, 0.0)
    assert reading.backlog == []
    assert side.intake.counters["io_errors"] == 1


def test_feed_has_no_other_way_to_what_the_packets_could_not_bring(side: Receiving) -> None:
    feed(side)
    hear(side, packet_beat(0, 0))
    hear(side, packets((5, 6), number=0)[0])
    assert side.taken() == [Loss(STREAM, EPOCH, 0, 5, "overflow"), (EPOCH, 5, 6)]


def test_events_that_no_packet_brought_are_asked_for_over_the_connection(side: Receiving) -> None:
    source = stream(side)
    hear(side, packet_beat(0, 0))
    hear(side, packets((5, 6), number=0)[0])
    assert source.receiver is not None
    assert (side.taken(), source.receiver.missing) == ([], 5)
    assert side.intake.incoming.timer_due <= source.receiver.deadline()


def test_deadline_of_packets_frees_what_waits_behind_those_that_are_given_up(
    side: Receiving, reading: PacketReading
) -> None:
    given = info_of(Multicast(new_group(), nack_deadline="50ms"), [SENDER])
    source = side.source(multicast=given)
    side.intake.epochs.on_admission(source, admission(), 0.0)
    assert source.packets is not None
    hear(side, *packets((0, 1), number=1))  # what was before it never had an event
    for step in range(100):
        reading.run_timers(source, source.packets, step * 0.01)
    assert side.taken() == [(EPOCH, 0, 1)]
