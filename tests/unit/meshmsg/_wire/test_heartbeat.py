"""A heartbeat of 40 bytes proves itself."""

from __future__ import annotations

import pytest

from meshmsg._model.errors import ProtocolError
from meshmsg._wire.frame_layout import CHECK_AT, HEARTBEAT, HEARTBEAT_MAGIC, check_of
from meshmsg._wire.heartbeat import Heartbeat

BEAT = Heartbeat(5, 7, 3, 40)


def signed(stream: int, magic: bytes, *rest: int) -> bytes:
    body = HEARTBEAT.pack(stream, magic, 0, *rest)
    return body[:CHECK_AT] + check_of(body).to_bytes(4, "little") + body[CHECK_AT + 4 :]


@pytest.mark.parametrize(
    "beat", [BEAT, Heartbeat(0, 0, 0, 0), Heartbeat((1 << 64) - 1, (1 << 63) - 1, 0, (1 << 63) - 1)]
)
def test_it_comes_back(beat: Heartbeat) -> None:
    data = beat.encode()
    assert len(data) == 40
    assert Heartbeat.decode(data) == beat


def test_every_byte_and_the_length_are_checked() -> None:
    data = BEAT.encode()
    for at in range(len(data)):
        with pytest.raises(ProtocolError):
            Heartbeat.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for bad in (b"", data[:-1], data + b"\0"):
        with pytest.raises(ProtocolError, match="bytes"):
            Heartbeat.decode(bad)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ((5, b"MMF1", 7, 3, 40), "not a heartbeat"),
        ((5, HEARTBEAT_MAGIC, 7, 41, 40), "out of range"),
        ((5, HEARTBEAT_MAGIC, 7, 0, 1 << 63), "out of range"),
        ((5, HEARTBEAT_MAGIC, 1 << 63, 0, 1), "out of range"),
    ],
)
def test_well_signed_nonsense_is_refused(fields: tuple[int, bytes, int], problem: str) -> None:
    assert Heartbeat.decode(signed(5, HEARTBEAT_MAGIC, 7, 3, 40)) == BEAT
    with pytest.raises(ProtocolError, match=problem):
        Heartbeat.decode(signed(*fields))
