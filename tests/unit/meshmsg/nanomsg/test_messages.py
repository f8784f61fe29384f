"""Messages of nanomsg and NNG: topics and payloads, taken apart and put together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmsg import ConfigError
from meshmsg._model.topics import check_topic
from meshmsg.nanomsg.messages import (
    check_separator,
    check_template,
    data_from,
    event_json,
    payload_from,
    put_together,
    take_apart,
)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"orders/eu|7", ("nng.orders.eu", b"7")),
        (b"orders.eu|a|b", ("nng.orders.eu", b"a|b")),
        (b"/a//b.|", ("nng.a.b", b"")),
        (b"a b*c|x", ("nng.a_b_c", b"x")),
        (b"no separator", None),
        (b"|only payload", None),
        (b"\xff\xfe|x", None),
        (b"t" * 300 + b"|x", None),
        (b"", None),
    ],
)
def test_topics_are_taken_out_of_messages(message: bytes, found: tuple[str, bytes] | None) -> None:
    assert take_apart(message, b"|", "nng.{topic}") == found


def test_without_a_place_for_it_the_whole_message_is_payload() -> None:
    assert take_apart(b"a|b", b"|", "nng.all") == ("nng.all", b"a|b")


@given(st.binary(max_size=300))
def test_any_message_has_a_topic_or_none(message: bytes) -> None:
    part = take_apart(message, b"|", "nng.{topic}")
    if part is not None:
        check_topic(part[0])
    data_from(message, True)


@given(st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){0,3}", fullmatch=True), st.binary(max_size=50))
def test_what_is_put_together_comes_apart_again(topic: str, payload: bytes) -> None:
    message = put_together(topic, payload, b"|")
    assert take_apart(message, b"|", "{topic}") == (topic, payload)
    assert put_together(topic, payload, b"") == payload


def test_payloads_are_bytes_text_or_json() -> None:
    assert payload_from(b"\xff") == b"\xff"
    assert payload_from("é") == "é".encode()
    assert payload_from({"a": [1, None]}) == b'{"a":[1,null]}'
    assert payload_from({(1, 2): 3}) == b'{"(1, 2)":3}'
    assert data_from(b'{"a": 1}', True) == {"a": 1}
    assert data_from(b"{", True) == b"{"
    assert data_from(b"1", False) == b"1"
    assert event_json({"k": 1}, b"text") == b'{"k":1,"data":"text"}'
    assert event_json({}, b"\xff") == b'{"data_b64":"/w=="}'


def test_wrong_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="separator"):
        check_separator("x" * 20)
    with pytest.raises(ConfigError, match="separator"):
        check_template("nng.{topic}", b"")
    with pytest.raises(ConfigError):
        check_template("a b", b"|")
