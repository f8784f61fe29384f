"""Endpoints, ids and bodies of webhooks."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from meshmsg._model.errors import ConfigError, TopicError
from meshmsg._model.event import Position
from meshmsg.webhooks.retry import SCHEDULE_S
from meshmsg.webhooks.types import (
    Endpoint,
    Secret,
    Stored,
    batch_id,
    body_of,
    check_endpoint,
    check_secret,
    key_of,
    message_id,
    pack,
    schedule_from,
    unpack,
)

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def stored(data: Any = 1, *, seq: int = 4, key: str | None = None, **headers: Any) -> Stored:
    content = pack(key, headers, data, b"payload")
    return Stored("shop/o", 3, seq, "o.a", 1_700_000_000_123_456_789, content)


def endpoint(**fields: Any) -> Endpoint:
    given = {"name": "erp", "url": "https://x", "topics": ("o.**",), "secrets": (Secret(SECRET),)}
    return Endpoint(**{**given, **fields})


# Events ----------------------------------------------------------------------------------------


def test_id_is_of_the_event_and_its_company() -> None:
    one, other = stored(seq=4), stored(seq=5)
    assert one.message == stored("other data").message == message_id(Position("shop/o", 3, 4))
    assert len({one.message, other.message, batch_id([one, other]), batch_id([one])}) == 4
    assert batch_id([one, other]) == batch_id([one, other]) != batch_id([other, one])


def test_event_is_kept_with_key_and_headers() -> None:
    event = stored({"n": 1}, key="k", trace="t")
    assert unpack(event.content) == ("k", {"trace": "t"}, {"n": 1})
    assert key_of(event) == "k"


@pytest.mark.parametrize("data", [object(), 1 << 70, {1, object()}])
def test_what_msgpack_has_no_form_for_is_kept_as_its_payload(data: Any) -> None:
    assert unpack(pack(None, {}, data, b"payload")) == (None, {}, b"payload")


def test_body_says_all_of_an_event() -> None:
    body = msgspec.json.decode(body_of([stored({"n": 1}, key="k", trace="t")], batch=False))
    assert body == {
        "type": "o.a",
        "timestamp": "2023-11-14T22:13:20.123456Z",
        "id": stored().message,
        "position": "shop/o@3:4",
        "key": "k",
        "headers": {"trace": "t"},
        "data": {"n": 1},
    }


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"text", {"data": "text"}),
        (b"\xff", {"data_b64": "/w=="}),
        ({1: {2: [3]}}, {"data": {"1": {"2": [3]}}}),
        ({(1, 2): 3}, {"data": {"(1, 2)": 3}}),
        (None, {"data": None}),
    ],
)
def test_body_is_json_whatever_the_event_is(data: Any, shown: dict[str, Any]) -> None:
    body = msgspec.json.decode(body_of([stored(data)], batch=False))
    assert {name: body[name] for name in shown} == shown
    assert "key" not in body
    assert "headers" not in body


def test_batch_is_one_body() -> None:
    body = msgspec.json.decode(body_of([stored(1), stored(2, seq=5)], batch=True))
    assert (body["type"], [one["data"] for one in body["data"]]) == ("meshmsg.batch", [1, 2])
    assert body["timestamp"] == body["data"][0]["timestamp"]
    alone = msgspec.json.decode(body_of([stored(1)], batch=True))
    assert alone["type"] == "meshmsg.batch"


def test_clock_of_a_publisher_may_say_anything() -> None:
    event = stored()._replace(time_ns=1 << 62)
    assert msgspec.json.decode(body_of([event], batch=False))["timestamp"]
    event = stored()._replace(time_ns=10**30)
    assert msgspec.json.decode(body_of([event], batch=False))["timestamp"] == str(10**30)


# Endpoints -------------------------------------------------------------------------------------


def test_secrets_are_in_force_until_they_are_replaced() -> None:
    two = endpoint(secrets=(Secret("new"), Secret("old", until=100.0)))
    assert two.signing(99.9) == ["new", "old"]
    assert two.signing(100.0) == ["new"]
    assert SECRET not in repr(endpoint())


@pytest.mark.parametrize(
    "text", [None, "", SECRET[6:], "whsec_", "whsec_short", "whsec_" + "A" * 200, "whsec_\xe9"]
)
def test_secret_that_is_none_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="secret"):
        check_secret(text)


@pytest.mark.parametrize("count", [24, 64])
def test_secret_of_allowed_length_is_taken(count: int) -> None:
    text = "whsec_" + base64.b64encode(b"k" * count).decode()
    assert check_secret(text) == text
    assert check_secret(text.rstrip("=")) == text.rstrip("=")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a.b"),
        ("name", "x" * 65),
        ("topics", ()),
        ("order", "random"),
        ("concurrency", 0),
        ("concurrency", 1001),
        ("concurrency", True),
        ("batch", 0),
        ("batch", 1.5),
        ("backlog_max", 0),
        ("timeout_s", 0.0),
        ("timeout_s", 301.0),
        ("schedule_s", ()),
        ("schedule_s", (0.0,) * 101),
    ],
)
def test_endpoint_that_is_wrong_says_where(field: str, value: Any) -> None:
    check_endpoint(endpoint())
    with pytest.raises(ConfigError, match=field.removesuffix("_s")):
        check_endpoint(endpoint(**{field: value}))


def test_topics_of_an_endpoint_are_patterns() -> None:
    with pytest.raises(TopicError):
        check_endpoint(endpoint(topics=("o.**", "a..b")))


def test_schedule_is_read_from_times() -> None:
    assert schedule_from(None) == SCHEDULE_S
    assert schedule_from("0s,5s,1m") == schedule_from(["0s", 5, "1m"]) == (0.0, 5.0, 60.0)
    for wrong in ("soon", ["0s", "x"], 7):
        with pytest.raises(ConfigError, match="schedule"):
            schedule_from(wrong)  # type: ignore[arg-type]
