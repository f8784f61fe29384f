"""What a peer believes of a multicast stream is within bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from meshmsg._wire.multicast_info import RECEIVE_BUFFER_MAX, SEAL_KEYS_MAX, MulticastInfo, SealInfo

INFO: dict[str, Any] = {
    "group": "239.1.2.3:7000",
    "request_port": 7001,
    "sources": [("10.0.0.1", 7002)],
    "packet_bytes": 1400,
    "nack_delay_s": 0.0,
    "nack_backoff_s": 0.01,
    "nack_retry_s": 0.05,
    "nack_deadline_s": 2.0,
    "status_interval_s": 0.1,
    "receiver_timeout_s": 5.0,
    "receive_buffer_bytes": 1 << 20,
}
SEAL: dict[str, Any] = {"sender": (1 << 64) - 1, "counter": 0, "generation": 7}


def decoded(kind: Any, fields: dict[str, Any]) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=kind)


def test_infos_come_back() -> None:
    assert decoded(MulticastInfo, INFO) == MulticastInfo(**INFO)
    assert decoded(SealInfo, SEAL | {"keys": [(7, b"k" * 32)]}).keys == [(7, b"k" * 32)]
    assert decoded(SealInfo, SEAL).keys == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group", "x" * 2000),
        ("group", "a\nb"),
        ("request_port", 65536),
        ("sources", [("a", 1)] * 3),
        ("sources", [("a", -1)]),
        ("packet_bytes", 63),
        ("packet_bytes", 65536),
        ("nack_delay_s", -0.1),
        ("nack_retry_s", 0),
        ("nack_deadline_s", float("nan")),
        ("status_interval_s", 0.0),
        ("receiver_timeout_s", 1e6),
        ("receive_buffer_bytes", 0),
        ("receive_buffer_bytes", RECEIVE_BUFFER_MAX + 1),
        ("reach_bytes", -1),
    ],
)
def test_what_no_socket_or_timer_could_take_is_refused(field: str, value: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(MulticastInfo, INFO | {field: value})


@pytest.mark.parametrize(
    "change",
    [
        {"keys": [(7, b"k" * 31)]},
        {"keys": [(7, b"k" * 33)]},
        {"keys": [(7, b"k" * 32)] * (SEAL_KEYS_MAX + 1)},
        {"generation": -1},
        {"sender": -1},
    ],
)
def test_keys_of_another_length_or_too_many_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(SealInfo, SEAL | change)
