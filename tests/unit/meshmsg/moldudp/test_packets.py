"""MoldUDP64 packets: bytes as the specification says, round trips, and bad bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg import ConfigError
from meshmsg._model.errors import ProtocolError
from meshmsg.moldudp import epoch_of, session_of
from meshmsg.moldudp.packets import (
    END_OF_SESSION,
    HEARTBEAT,
    MoldPacket,
    MoldRequest,
    check_session,
    decode_packet,
    decode_request,
    encode_head,
    encode_packets,
)

MESSAGES = st.lists(st.binary(max_size=300), min_size=1, max_size=40)


def test_packet_byte_by_byte() -> None:
    (packet,) = encode_packets("DAY1", 7, [b"hello", b""])
    assert packet == (
        b"DAY1      " + bytes([0, 0, 0, 0, 0, 0, 0, 7]) + b"\0\2" + b"\0\5hello" + b"\0\0"
    )
    assert decode_packet(packet) == MoldPacket("DAY1", 7, (b"hello", b""))


@given(messages=MESSAGES, first=st.integers(1, 2**63), packet_bytes=st.integers(64, 1500))
def test_packets_hold_the_messages_in_order(
    messages: list[bytes], first: int, packet_bytes: int
) -> None:
    found, number = [], first
    for data in encode_packets("S", first, messages, packet_bytes):
        packet = decode_packet(data)
        assert (packet.session, packet.first) == ("S", number)
        assert len(data) <= packet_bytes or len(packet.messages) == 1
        found += packet.messages
        number = packet.stop
    assert found == messages


def test_heads() -> None:
    assert decode_packet(encode_head("S", 9, HEARTBEAT)) == MoldPacket("S", 9, ())
    assert decode_packet(encode_head("S", 9, END_OF_SESSION)) == MoldPacket("S", 9, (), True)
    assert decode_request(encode_head("S", 9, 3)) == MoldRequest("S", 9, 12)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_packet_or_refused(data: bytes) -> None:
    for decode in (decode_packet, decode_request):
        try:
            decode(data)
        except ProtocolError:
            pass


@given(messages=MESSAGES, cut=st.integers(0, 400), more=st.binary(min_size=1, max_size=9))
def test_a_packet_that_is_not_whole_is_refused(
    messages: list[bytes], cut: int, more: bytes
) -> None:
    (packet,) = encode_packets("S", 1, messages, 60_000)
    for bad in (packet[: cut % len(packet)], packet + more):
        with pytest.raises(ProtocolError):
            decode_packet(bad)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        encode_head("S", 0, 1),
        encode_head("S", 1, HEARTBEAT) + b"x",
        encode_head("S", 1, END_OF_SESSION) + b"\0\1x",
        encode_head("S", 2**64 - 1, 1) + b"\0\1x",
        b"\xff" * 10 + encode_head("S", 1, 0)[10:],
    ],
)
def test_bad_packets_are_refused(bad: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_packet(bad)


@pytest.mark.parametrize("count", [HEARTBEAT, END_OF_SESSION])
def test_bad_requests_are_refused(count: int) -> None:
    with pytest.raises(ProtocolError):
        decode_request(encode_head("S", 1, count))


def test_a_message_that_no_packet_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        list(encode_packets("S", 1, [bytes(65_530)]))


@pytest.mark.parametrize("bad", ["", "   ", "ELEVEN-LONG", "tab\t", "ü", 7])
def test_bad_session_names_are_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="session"):
        check_session(bad)


@given(epoch=st.integers(0, 36**10 - 1))
def test_a_session_is_named_after_its_epoch(epoch: int) -> None:
    assert epoch_of(check_session(session_of(epoch))) == epoch


def test_a_session_that_is_named_after_no_epoch() -> None:
    with pytest.raises(ConfigError):
        epoch_of("DAY1")
    with pytest.raises(ConfigError):
        session_of(36**10)
