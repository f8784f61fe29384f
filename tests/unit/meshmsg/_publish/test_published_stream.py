"""One stream on its way out: how it is announced, who blocks it, whom packets do not reach."""

from __future__ import annotations

import pytest

from meshmsg import Multicast, Stream
from meshmsg._publish.multicast_sender import PacketOutlet
from meshmsg._publish.published_stream import NAMES_MAX, Outlet, unconnected
from meshmsg._wire.control import Start
from tests.support.ports import free_port
from tests.support.publishing import CLOCK_US, fill, outlet_of

KIB = 1024


@pytest.mark.parametrize(
    ("overflow", "window_bytes"),
    [("block", 4 * KIB), ("buffer", 16 * KIB), ("drop_oldest", 16 * KIB), ("spill", 16 * KIB)],
)
def test_where_the_publisher_waits_subscribers_report_often(
    overflow: str, window_bytes: int
) -> None:
    outlet = outlet_of(Stream("a", overflow=overflow, buffer_bytes=64 * KIB, window_bytes=4 * KIB))
    info = outlet.info()
    assert (info.name, info.topics, info.epoch) == ("pub/a", "a", CLOCK_US)
    assert info.window_bytes == window_bytes
    assert not info.durable
    assert info.multicast is None


def test_a_window_is_never_announced_larger_than_the_buffer() -> None:
    outlet = outlet_of(Stream("a", overflow="block", buffer_bytes=64 * KIB, window_bytes="1MiB"))
    assert outlet.info().window_bytes == 64 * KIB


@pytest.mark.parametrize("kind", ["live", "origin", "earliest", "last", "time", "resume"])
def test_without_a_log_no_start_reaches_back(kind: str) -> None:
    start = Start("pub/a", kind, 0, 5)  # type: ignore[arg-type]
    assert not outlet_of(Stream("a")).reaches_back(start)


def test_a_stream_is_full_behind_a_subscriber_that_takes_nothing() -> None:
    outlet = outlet_of(Stream("a", overflow="block", window_bytes=KIB))
    fill(outlet, 3, KIB)
    assert not outlet.is_full()  # nobody reads it
    outlet.sender.flow.admit(7, "slow", 3, ("**",), now=0.0)
    assert not outlet.is_full()
    fill(outlet, 2, KIB)
    assert outlet.is_full()
    assert outlet.is_shut()
    assert outlet.blockers() == {7: "slow"}
    outlet.sender.flow.release(7, now=1.0)
    assert not outlet.is_full()
    assert outlet.blockers() == {}


def test_an_event_is_no_larger_than_the_stream_and_a_frame_take() -> None:
    assert outlet_of(Stream("a", event_bytes_max=KIB), frame_bytes=64 * KIB).large_max == KIB
    assert outlet_of(Stream("a"), frame_bytes=64 * KIB).large_max == 64 * KIB


def test_what_is_on_its_way_is_what_was_sealed() -> None:
    outlet = outlet_of(Stream("a"))
    outlet.add("a", b"x", 1)
    assert outlet.tail_next() == 0
    fill_open = outlet.sender.seal(now=0.0)
    assert fill_open is not None
    assert outlet.tail_next() == 1


def with_packets(**options: object) -> Outlet:
    stream = Stream(
        "a", transport=Multicast(f"239.255.7.7:{free_port()}", flow="slowest"), **options
    )
    outlet = outlet_of(stream)
    outlet.packets = PacketOutlet(stream, 1, CLOCK_US, "127.0.0.1")
    outlet.packets.open(0.0)
    return outlet


def test_a_receiver_that_is_known_by_its_reports_only_is_called_by_its_number() -> None:
    outlet = with_packets()
    assert outlet.packets is not None
    try:
        assert outlet.info().multicast is not None
        outlet.sender.flow.admit(7, "desk", 0, ("**",), now=0.0)
        assert outlet.label_of(7) == "desk"
        assert outlet.label_of(0xABCDEF12) == unconnected(0xABCDEF12)
        assert outlet.label_of(0xABCDEF12) == "receiver #cdef12 (not connected)"
    finally:
        outlet.packets.server.close()


def test_receivers_that_packets_do_not_reach_are_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    outlet = with_packets()
    assert outlet.packets is not None
    try:
        sender = outlet.packets.sender
        reach = [*range(1, NAMES_MAX + 3)]
        monkeypatch.setattr(sender, "unreached", lambda: reach)
        for _ in range(2):
            outlet.tell_unreached()
        assert len(caplog.records) == 1
        assert "and 2 more" in caplog.text
        reach.append(99)
        outlet.tell_unreached()
        assert len(caplog.records) == 2
        assert caplog.records[1].getMessage().count("receiver #") == 1
        reach.clear()
        outlet.tell_unreached()
        assert len(caplog.records) == 2
        assert outlet.unreached() == {}
    finally:
        outlet.packets.server.close()
