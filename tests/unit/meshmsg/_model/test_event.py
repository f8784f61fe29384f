"""Positions, losses and events: what they say, how they sort, and what is read of them when."""

from __future__ import annotations

import copy
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg._model.batch import Batch, Event
from meshmsg._model.codecs import MsgpackCodec, Undecodable
from meshmsg._model.errors import ConfigError, PayloadError
from meshmsg._model.event import LOSS_REASONS, NUMBER_MAX, EventsLost, Loss, Position
from meshmsg._wire.frame import Frame, FrameBuilder, encode_headers

STREAM = "pricing/orders.**"


def event(data: object = None, *, payload: bytes | None = None, raw: bool = False) -> Event:
    """One event of three, with a key and headers."""
    builder = FrameBuilder()
    builder.add("orders.eu", b"before", 1, raw=True)
    given = MsgpackCodec().encode(data) if payload is None else payload
    builder.add("orders.us", given, 2, raw=raw)
    builder.annotate("ACME", encode_headers({"trace": 7}))
    builder.add("orders.eu", b"after", 3, raw=True)
    return list(Batch(Frame(builder.seal(9, 1700, 40)), STREAM, MsgpackCodec()))[1]


# Position --------------------------------------------------------------------------------------

STREAM_NAMES = st.sampled_from(["p/a.**", "p@q/a", "peer/a@b:c", "é/ü", "a"])
NUMBERS = st.integers(0, (1 << 63) - 1)


@given(STREAM_NAMES, NUMBERS, NUMBERS)
def test_position_can_be_read_back_from_its_text(stream: str, epoch: int, seq: int) -> None:
    position = Position(stream, epoch, seq)
    assert Position.parse(str(position)) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a@1",
        "a@1:",
        "a@:1",
        "@1:1",
        "a@1:-1",
        "a@1:1.0",
        "a@1:1 ",
        "a:1@1",
        "a@x:1",
        "a@1:٣",
        "a@1:" + "9" * 5000,
    ],
)
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"position: .* is not of the form stream@epoch:seq"):
        Position.parse(text)


@pytest.mark.parametrize("text", [f"a@1:{NUMBER_MAX + 1}", f"a@{NUMBER_MAX + 1}:1"])
def test_position_that_nothing_could_keep_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no stream gets beyond"):
        Position.parse(text)
    assert Position.parse(f"a@{NUMBER_MAX}:{NUMBER_MAX}").seq == NUMBER_MAX


def test_positions_sort_by_epoch_and_then_by_number() -> None:
    one, two, three = Position("s", 1, 9), Position("s", 2, 0), Position("s", 2, 1)
    assert sorted([three, one, two]) == [one, two, three]


def test_position_cannot_be_changed_and_can_be_a_key() -> None:
    position = Position("s", 1, 2)
    with pytest.raises(AttributeError):
        position.seq = 3  # type: ignore[misc]
    assert {position: "x"}[Position("s", 1, 2)] == "x"
    assert pickle.loads(pickle.dumps(position)) == copy.copy(position) == position


# Loss ------------------------------------------------------------------------------------------


def test_loss_counts_its_events_and_says_what_happened() -> None:
    loss = Loss("p/a.**", 1700, 10, 13, "overflow")
    assert loss.count == 3
    assert str(loss) == "3 events lost in p/a.** (epoch 1700, 10 to 12): overflow"
    assert EventsLost(loss).loss is loss


def test_reasons_are_pinned() -> None:
    assert LOSS_REASONS == ("overflow", "evicted", "gone", "deadline", "expired", "away", "corrupt")
    assert all(f"`{reason}`" in (Loss.__doc__ or "") for reason in LOSS_REASONS)


# Event -----------------------------------------------------------------------------------------


def test_event_gives_everything_that_was_published() -> None:
    it = event({"id": 7})
    assert (it.topic, it.key, it.headers) == ("orders.us", "ACME", {"trace": 7})
    assert it.data == {"id": 7}
    assert it.payload == b"\x81\xa2id\x07"
    assert (it.time_ns, it.time) == (2, 2e-9)
    assert it.seq == 41
    assert it.position == Position(STREAM, 1700, 41)
    assert repr(it) == f"<Event orders.us, key='ACME' {{'id': 7}} at {STREAM}@1700:41>"


def test_raw_event_is_its_payload() -> None:
    it = event(payload=b"\x00\x01", raw=True)
    assert it.data == it.payload == b"\x00\x01"


def test_event_without_key_and_headers_has_none() -> None:
    builder = FrameBuilder()
    builder.add("a", b"x", 0, raw=True)
    (it,) = Batch(Frame(builder.seal(9, 1, 0)), STREAM, MsgpackCodec())
    assert it.key is None
    assert it.headers == {}
    assert "key" not in repr(it)


def test_undecodable_event_raises_when_its_data_is_read_and_only_then() -> None:
    it = event(payload=b"\xc1")
    assert (it.topic, it.key, it.payload) == ("orders.us", "ACME", b"\xc1")
    assert "<undecodable>" in repr(it)
    with pytest.raises(PayloadError, match=r"@1700:41: codec 'msgpack': "):
        _ = it.data


def test_long_data_is_cut_in_the_repr() -> None:
    assert len(repr(event("x" * 5000))) < 200


def test_events_are_told_apart_by_identity() -> None:
    one, two = event(1), event(1)
    assert one != two
    assert len({one, two}) == 2


def test_event_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        event(1)._index = 0  # type: ignore[misc]


def test_undecodable_says_why() -> None:
    assert Undecodable("because").reason == "because"
    assert msgspec.structs.fields(Undecodable)[0].name == "reason"
