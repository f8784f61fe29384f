"""Control messages: round trips, limits, harm, and how peers of two versions part."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshmsg._model.errors import ProtocolError
from meshmsg._model.message_fields import NACK_RANGES_MAX
from meshmsg._wire import control as _control
from meshmsg._wire.control import (
    CONTROL_BYTES_MAX,
    PROTOCOL_VERSION,
    Hello,
    Join,
    Message,
    Nack,
    Ping,
    Refused,
    Status,
    Subscribe,
    Welcome,
    decode_message,
    encode_message,
    encode_refusal,
    message_version,
    stream_wire_id,
    subscription_token,
    version_mismatch,
)
from tests.support.samples import KINDS, sample_of

MESSAGES = [sample_of(kind, seed) for kind in KINDS for seed in range(3)]
NACK = sample_of(Nack, 0)
STATUS = sample_of(Status, 0)
JOIN = sample_of(Join, 0)
SUBSCRIBE = sample_of(Subscribe, 0)
MULTICAST = {
    "group": "239.255.7.7:30001",
    "request_port": 30002,
    "sources": [["127.0.0.1", 40000]],
    "packet_bytes": 1472,
    "nack_delay_s": 0.001,
    "nack_backoff_s": 0.002,
    "nack_retry_s": 0.02,
    "nack_deadline_s": 5.0,
    "status_interval_s": 0.1,
    "receiver_timeout_s": 3.0,
    "receive_buffer_bytes": 8 << 20,
}


def body_of(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(encode_message(message)[4:])
    return fields


def settlement(**fields: object) -> dict[str, object]:
    return {"stream": "s", "epoch": 1, **fields}


def enclosed(body: object) -> bytes:
    """Any msgpack value in a good envelope."""
    return b"MMC\x02" + msgpack.packb(body)


# Round trips -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_message_gives_back_what_went_in(kind: type[Message]) -> None:
    for seed in range(20):
        message = sample_of(kind, seed)
        assert decode_message(encode_message(message)) == message


def test_names_of_messages_are_pinned() -> None:
    """They are the protocol: another name is another version."""
    names = " ".join(sorted({body_of(message)["t"] for message in MESSAGES}))
    assert names == (
        "answer ask bye commit credit evicted gone hello here join joined kept logs logs? nack "
        "operate part ping pong read refused rekey repair settle status status? subscribe "
        "subscribed taken unjoined unknown unsubscribed welcome"
    )


def test_message_is_an_envelope_and_a_msgpack_map() -> None:
    assert encode_message(Ping(5)) == b"MMC\x02" + msgpack.packb({"t": "ping", "number": 5})


def test_fields_of_a_newer_release_are_passed_over() -> None:
    assert decode_message(enclosed({"t": "ping", "number": 5, "colour": "red"})) == Ping(5)


# Limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"t": "ping", "number": -1},
        {"t": "ping", "number": 1 << 63},
        {"t": "ping", "number": 1.0},
        {"t": "ping", "number": "1"},
        {"t": "ping", "number": None},
        {"t": "ping"},
        {"t": "pong"},
        {"t": "nothing"},
        {"t": 5},
        {},
        [],
        None,
        {"t": "ask", "number": 1, "what": "x" * 1025},
        {"t": "refused", "reason": "x" * 4097},
        {"t": "ask", "number": 1, "what": "stats\x1b[2J"},
        {"t": "hello", "peer": "a\nmeshmsg: all is well", "instance": 1, "mesh": "m"},
        {"t": "hello", "peer": "", "instance": 1, "mesh": "m"},
        {"t": "hello", "peer": "a/b", "instance": 1, "mesh": "m"},
        {"t": "hello", "peer": "x" * 129, "instance": 1, "mesh": "m"},
        {"t": "hello", "peer": "a", "instance": 1, "mesh": "m", "streams": ["a/\x9b2J"]},
        {"t": "here", "peer": "a", "instance": 1, "serial": 1, "groups": ["g\r"]},
        {"t": "here", "peer": "a", "instance": 1, "serial": 1, "software": "\u2028"},
        body_of(SUBSCRIBE) | {"patterns": ["a"] * 1025},
        body_of(JOIN) | {"patterns": ["a"] * 1025},
        body_of(NACK) | {"ranges": [[0, 1]] * 257},
        body_of(NACK) | {"ranges": [[0, -1]]},
        body_of(NACK) | {"ranges": [[0]]},
        body_of(NACK) | {"ranges": [[0, 1, 2]]},
        body_of(NACK) | {"sub": -1},
        body_of(STATUS) | {"figures": [{"stream": "s"}]},
        {"t": "answer", "number": 1},
        body_of(JOIN) | {"prefetch": 0},
        body_of(JOIN) | {"prefetch": 1_000_001},
        body_of(JOIN) | {"max_attempts": 0},
        body_of(JOIN) | {"order": "keys"},
        body_of(JOIN) | {"ack_timeout_s": -1.0},
        body_of(JOIN) | {"ack_timeout_s": float("nan")},
        {"t": "settle", "sub": 1, "settlements": [{"stream": "s"}]},
        {"t": "settle", "sub": 1, "settlements": [settlement(acks=[[0, 1, 0]])]},
        {"t": "settle", "sub": 1, "settlements": [settlement(acks=[[0, 1, 1]] * 65_537)]},
        {"t": "settle", "sub": 1, "settlements": [settlement(nacks=[{"seq": 1}])]},
    ],
)
def test_message_out_of_limits_is_refused(fields: object) -> None:
    with pytest.raises(ProtocolError, match="control message: "):
        decode_message(enclosed(fields))


def welcome_with(**multicast: Any) -> dict[str, Any]:
    """A welcome of one multicast stream, with some fields of its transport as given."""
    stream = {"name": "p/a", "topics": "a", "epoch": 1, "overflow": "block", "codec": "json"}
    stream |= {"window_bytes": 1, "multicast": MULTICAST | multicast}
    who = {"t": "welcome", "peer": "p", "instance": 1, "mesh": "m"}
    return who | {"streams": [stream], "fanout": []}


def test_multicast_of_a_stream_is_announced_with_it() -> None:
    message = decode_message(enclosed(welcome_with(colour="red")))
    assert isinstance(message, Welcome)
    transport = message.streams[0].multicast
    assert transport is not None
    assert (transport.group, transport.second, transport.parity) == ("239.255.7.7:30001", "", False)
    assert transport.sources == [("127.0.0.1", 40000)]


def test_stream_of_a_release_without_multicast_has_none() -> None:
    body = welcome_with()
    del body["streams"][0]["multicast"]
    message = decode_message(enclosed(body))
    assert isinstance(message, Welcome)
    assert message.streams[0].multicast is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group", 5),
        ("request_port", 65536),
        ("sources", [["127.0.0.1"]]),
        ("sources", [["127.0.0.1", -1]]),
        ("packet_bytes", 63),
        ("packet_bytes", 65536),
        ("nack_delay_s", -0.1),
        ("nack_backoff_s", 86401),
        ("nack_retry_s", 0),
        ("nack_deadline_s", 0.0),
        ("status_interval_s", 0.0),
        ("receiver_timeout_s", float("inf")),
        ("receive_buffer_bytes", 0),
        ("receive_buffer_bytes", 1 << 32),
        ("parity", "16+2"),
        ("second", None),
    ],
)
def test_multicast_out_of_limits_is_refused(field: str, value: object) -> None:
    """A receiver acts on these figures: a publisher cannot make it spin, or ask for the moon."""
    with pytest.raises(ProtocolError, match="control message: "):
        decode_message(enclosed(welcome_with(**{field: value})))


def test_names_in_all_scripts_are_taken() -> None:
    for name in ("pricing-1", "prix.à_Paris", "価格", "😀"):
        hello = Hello(name, 1, "m", streams=[f"{name}/a b.**"])
        assert decode_message(encode_message(hello)) == hello


def test_as_many_ranges_as_allowed_are_taken() -> None:
    nack = msgspec.structs.replace(NACK, ranges=[(n, n + 1) for n in range(NACK_RANGES_MAX)])
    assert decode_message(encode_message(nack)) == nack


@pytest.mark.parametrize(
    "data",
    [b"", b"MMC", b"MMC\x02", b"MMF1\x80", b"mmc\x01\x80", b"MMC\x02" + b"\0" * CONTROL_BYTES_MAX],
    ids=["empty", "short", "no body", "frame", "case", "too long"],
)
def test_what_is_no_control_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a control message"):
        decode_message(data)
    with pytest.raises(ProtocolError, match="not a control message"):
        message_version(data)


@pytest.mark.parametrize("claim", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"])
def test_a_claim_of_4_gib_is_refused_before_anything_is_allocated(claim: bytes) -> None:
    bodies = [
        b"\x83\xa1t\xa6answer\xa6number\x01\xa4body" + claim + b"\xff\xff\xff\xff",
        b"\x81\xa1t" + claim + b"\xff\xff\xff\xff",
        claim + b"\xff\xff\xff\xff",
    ]
    for body in bodies:
        tracemalloc.start()
        try:
            with pytest.raises(ProtocolError):
                decode_message(b"MMC\x02" + body)
            assert tracemalloc.get_traced_memory()[1] < 64 * 1024
        finally:
            tracemalloc.stop()


def test_deep_nesting_is_refused_and_no_crash() -> None:
    deep = b"\x83\xa1t\xa6answer\xa6number\x01\xa4body" + b"\x91" * 500_000
    with pytest.raises(ProtocolError):
        decode_message(b"MMC\x02" + deep)


# Harm ------------------------------------------------------------------------------------------


def read_or_refuse(data: bytes) -> None:
    try:
        message = decode_message(data)
    except ProtocolError:
        return
    assert isinstance(message, KINDS)
    encode_message(message)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(MESSAGES), st.integers(0, 1 << 32))
def test_harmed_message_is_refused_or_a_message(message: Message, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(encode_message(message))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(3, len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        elif len(data) > 5:
            del data[at : at + rng.randint(1, 4)]
        data += b"\0" * max(0, 4 - len(data))
    read_or_refuse(bytes(data))


@given(st.binary(max_size=100))
@example(b"\x81\xa1t\xa1\xff")
@example(b"\x83\xa1t\xa6answer\xa6number\x01\xa4body\x81\x80\x01")
def test_noise_in_a_good_envelope_is_refused_or_a_message(noise: bytes) -> None:
    read_or_refuse(b"MMC\x02" + noise)


# Two versions ----------------------------------------------------------------------------------


def test_message_of_another_version_is_refused_and_its_version_is_known() -> None:
    data = b"MMC\x01" + encode_message(Ping(1))[4:]
    assert message_version(data) == 1
    with pytest.raises(ProtocolError, match="protocol version 1, this side speaks 2"):
        decode_message(data)


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_refusal_can_be_read_by_a_peer_of_another_version(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode_refusal(version_mismatch(version), version)
    assert message_version(data) == version
    body = msgpack.unpackb(data[4:])
    assert body == {"t": "refused", "reason": version_mismatch(version), "version": 2}
    monkeypatch.setattr(_control, "PROTOCOL_VERSION", version)  # be that peer
    answer = decode_message(data)
    assert isinstance(answer, Refused)
    assert answer.version == 2
    assert answer.reason == (
        f"protocol version {version} meets version 2: "
        f"install the same meshmsg release on both sides"
    )


def test_refusal_of_this_version_is_an_ordinary_message() -> None:
    assert decode_message(encode_refusal("no", PROTOCOL_VERSION)) == Refused("no")


def test_what_every_version_must_find_in_hello_and_refused_is_frozen() -> None:
    hello = body_of(Hello(peer="p", instance=7, mesh="m"))
    assert hello.items() >= {"t": "hello", "peer": "p", "instance": 7, "mesh": "m"}.items()
    assert hello["version"] == 2
    assert body_of(Refused("r")) == {"t": "refused", "reason": "r", "version": 2}


# Names on the wire -----------------------------------------------------------------------------


def test_stream_number_is_pinned() -> None:
    """BLAKE2b of mesh and name, 8 bytes, little-endian."""
    assert stream_wire_id("default", "pricing/orders.**") == 9459103526460351249
    assert stream_wire_id("other", "pricing/orders.**") != 9459103526460351249


def test_subscription_token_is_twelve_bytes() -> None:
    assert subscription_token(0x0102030405060708) == b"MMS1\x08\x07\x06\x05\x04\x03\x02\x01"
    assert len(subscription_token((1 << 64) - 1)) == 12


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Ping(1).number = 2  # type: ignore[misc]
    assert msgspec.structs.asdict(Ping(1)) == {"number": 1}
