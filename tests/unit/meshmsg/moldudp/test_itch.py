"""ITCH 5.0 messages: bytes as the specification says, round trips, and bad bytes."""

from __future__ import annotations

import random
import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg import PayloadError
from meshmsg._model.errors import ProtocolError
from meshmsg.moldudp import itch
from meshmsg.moldudp.itch import (
    MESSAGE_BYTES,
    AddOrder,
    Message,
    OtherMessage,
    Replaced,
    StockDirectory,
    decode_message,
    encode_message,
)

#: Lengths in the specification, Nasdaq TotalView-ITCH 5.0.
LENGTHS = {"S": 12, "R": 39, "H": 25, "Y": 20, "L": 26, "V": 35, "W": 12, "K": 28, "J": 35}
LENGTHS |= {"h": 21, "A": 36, "F": 40, "E": 31, "C": 36, "X": 23, "D": 19, "U": 35, "P": 44}
LENGTHS |= {"Q": 40, "B": 19, "I": 50, "N": 20, "O": 48}


def drawn(kind: type[Any], values: random.Random) -> Message:
    """A message with any values that have room in it."""
    form = itch._BY_KIND[kind]
    body: list[Any] = []
    for size, letter in re.findall(r"(\d*)([a-zA-Z])", form.packing.format[len(itch.HEAD) + 1 :]):
        if letter == "s":
            body.append("".join(values.choices("ABC19", k=values.randint(0, int(size)))))
        else:
            body.append(values.getrandbits({"Q": 64, "I": 32}[letter]))
    head = (values.getrandbits(16), values.getrandbits(16), values.getrandbits(48))
    message: Message = kind(*head, *body)
    return message


KINDS = [kind for kind in get_args(Message) if kind is not OtherMessage]


def test_lengths_are_those_of_the_specification() -> None:
    assert MESSAGE_BYTES == LENGTHS


def test_add_order_byte_by_byte() -> None:
    message = AddOrder(0x0102, 3, 34_200_000_000_123, 5, "B", 100, "AAPL", 1_875_000)
    assert encode_message(message).hex(" ") == (
        "41 01 02 00 03 1f 1a ce d9 f0 7b 00 00 00 00 00 00 00 05 42 "
        "00 00 00 64 41 41 50 4c 20 20 20 20 00 1c 9c 38"
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_round_trip(kind: type[Any]) -> None:
    for seed in range(200):
        message = drawn(kind, random.Random(seed))
        data = encode_message(message)
        assert len(data) == MESSAGE_BYTES[chr(data[0])]
        assert decode_message(data) == message
        assert type(decode_message(data)) is kind


@pytest.mark.parametrize("letter", itch.OTHER_BYTES)
def test_other_messages_pass_as_they_are(letter: str) -> None:
    body = bytes(range(itch.OTHER_BYTES[letter] - 11))
    message = OtherMessage(1, 2, 3, letter, body)
    assert decode_message(encode_message(message)) == message


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = decode_message(data)
    except ProtocolError:
        return
    assert len(data) == LENGTHS[chr(data[0])]
    if "\0" not in repr(message):
        assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("letter", LENGTHS)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_length_is_refused(letter: str, change: int) -> None:
    data = (letter.encode() + b" " * 60)[: LENGTHS[letter] + change]
    with pytest.raises(ProtocolError, match="ITCH"):
        decode_message(data)


@pytest.mark.parametrize(
    "wrong",
    [
        StockDirectory(1, 0, 0, "NINELETTERS"),
        StockDirectory(1, 0, 0, "GRÖN"),
        StockDirectory(70_000, 0, 0, "A"),
        Replaced(1, 0, 2**48, 1, 2, 3, 4),
        Replaced(1, 0, 0, -1, 2, 3, 4),
        OtherMessage(1, 0, 0, "Y", b"short"),
        OtherMessage(1, 0, 0, "?", b""),
        ("not", "a", "message"),
        None,
    ],
)
def test_what_has_no_room_is_refused(wrong: Any) -> None:
    with pytest.raises(PayloadError, match="is not an ITCH message"):
        encode_message(wrong)
