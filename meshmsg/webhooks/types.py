"""What webhooks are made of: endpoints, deliveries, and the messages that are posted."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from meshmsg._model.errors import ConfigError
from meshmsg._model.event import Position
from meshmsg._model.topics import check_pattern
from meshmsg._model.units import one_of, parse_time, several
from meshmsg.webhooks.retry import SCHEDULE_S

ORDER_WORDS = ("none", "key", "all")
STATES = ("waiting", "delivered", "dead")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
SECRET_PREFIX = "whsec_"
SECRETS_MAX = 5
CONCURRENCY_MAX = 1_000
BATCH_MAX = 10_000
TIMEOUT_MAX_S = 300.0


class Secret(msgspec.Struct, frozen=True):
    """A key that posts are signed with, until a time where it is being replaced."""

    text: str
    until: float | None = None

    def __repr__(self) -> str:
        return f"Secret('whsec_...', until={self.until})"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A registered callback.  `state` is `active` or `disabled`, then `reason` says why."""

    name: str
    url: str
    topics: tuple[str, ...]
    secrets: tuple[Secret, ...]
    order: str = "none"
    concurrency: int = 4
    batch: int = 1
    timeout_s: float = 15.0
    allow: tuple[str, ...] = ()
    since: float = 0.0
    schedule_s: tuple[float, ...] = SCHEDULE_S
    backlog_max: int = 100_000
    created: float = 0.0
    state: str = "active"
    reason: str = ""

    def signing(self, now: float) -> list[str]:
        """The secrets in force."""
        return [one.text for one in self.secrets if one.until is None or now < one.until]


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event for one endpoint, and how far it is."""

    id: int
    endpoint: str
    message: str
    topic: str
    position: str
    state: str
    attempts: int
    due: float | None
    status: int | None
    error: str
    updated: float


class Stored(NamedTuple):
    """An event as the book keeps it; `content` is msgpack of key, headers and data."""

    stream: str
    epoch: int
    seq: int
    topic: str
    time_ns: int
    content: bytes

    @property
    def message(self) -> str:
        """The id that it is posted under, at every attempt and after every restart."""
        return message_id(Position(self.stream, self.epoch, self.seq))


def message_id(position: Position) -> str:
    """A stable id of an event.

    >>> message_id(Position("shop/orders.**", 1700000000000000, 41))
    'msg_ll3nurk52asow3xrncsv3g5shm'
    """
    digest = hashlib.blake2b(str(position).encode(), digest_size=16).digest()
    return "msg_" + base64.b32encode(digest).decode().rstrip("=").lower()


def batch_id(events: Sequence[Stored]) -> str:
    """A stable id of a batch, which is always sent in the same company."""
    return message_id(Position(" ".join(event.message for event in events), len(events), 0))


def pack(key: str | None, headers: Mapping[str, Any], data: Any, payload: bytes) -> bytes:
    """An event's content for the book; what msgpack has no form for stays as its payload."""
    try:
        return msgspec.msgpack.encode([key, dict(headers), data])
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.msgpack.encode([key, dict(headers), payload])


def unpack(content: bytes) -> tuple[str | None, dict[str, Any], Any]:
    """Key, headers and data."""
    key, headers, data = msgspec.msgpack.decode(content)
    return key, headers, data


def key_of(event: Stored) -> str | None:
    """The key that the event was published with."""
    return unpack(event.content)[0]


def shared_headers(events: Sequence[Stored]) -> dict[str, Any]:
    """The headers of an event, or those that all of several have alike."""
    first, *others = (unpack(event.content)[1] for event in events)
    return {k: v for k, v in first.items() if all(one.get(k) == v for one in others)}


def body_of(events: Sequence[Stored], batch: bool) -> bytes:
    """The JSON that is posted: one event, or a batch of them; the same at every attempt."""
    shown = [_shown(event) for event in events]
    if not batch:
        return _json(shown[0])
    first = shown[0]["timestamp"]
    return _json({"type": "meshmsg.batch", "timestamp": first, "data": shown})


def _shown(event: Stored) -> dict[str, Any]:
    key, headers, data = unpack(event.content)
    shown: dict[str, Any] = {
        "type": event.topic,
        "timestamp": _iso(event.time_ns),
        "id": event.message,
        "position": f"{event.stream}@{event.epoch}:{event.seq}",
    }
    if key is not None:
        shown["key"] = key
    if headers:
        shown["headers"] = headers
    if not isinstance(data, bytes):
        return shown | {"data": data}
    try:
        return shown | {"data": data.decode()}
    except UnicodeDecodeError:
        return shown | {"data_b64": base64.b64encode(data).decode()}


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=repr)
    except (TypeError, ValueError):  # keys that are not text
        return msgspec.json.encode(_texted(value), enc_hook=repr)


def _texted(value: Any) -> Any:
    if isinstance(value, dict):
        return {k if isinstance(k, str) else repr(k): _texted(v) for k, v in value.items()}
    return [_texted(item) for item in value] if isinstance(value, list | tuple) else value


def _iso(time_ns: int) -> str:
    try:
        moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    except (OverflowError, ValueError, OSError):  # a publisher's clock may say anything
        return str(time_ns)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % 1_000_000_000 // 1000:06d}Z"


def check_secret(text: object, field: str = "secret") -> str:
    """A `whsec_...` secret of 24 to 64 bytes; raises `ConfigError`."""
    problem = (
        f"is not {SECRET_PREFIX} and 24 to 64 bytes in base64: `meshmsg webhook add` makes one"
    )
    if not isinstance(text, str) or not text.startswith(SECRET_PREFIX):
        raise ConfigError(field, problem)
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX) + "==", validate=False)
    except ValueError:
        raise ConfigError(field, problem) from None
    if not 24 <= len(key) <= 64:
        raise ConfigError(field, problem)
    return text


def check_endpoint_name(name: object) -> str:
    """A name that fits into a topic; raises `ConfigError`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError("name", f"{name!r} is not 1 to 64 letters, digits, '-' and '_'")
    return name


def check_endpoint(endpoint: Endpoint) -> Endpoint:
    """All that the URL's check leaves; raises `ConfigError`."""
    check_endpoint_name(endpoint.name)
    if not endpoint.topics:
        raise ConfigError("topics", "name at least one pattern, for example 'orders.**'")
    for pattern in endpoint.topics:
        check_pattern(pattern)
    one_of("order", endpoint.order, ORDER_WORDS)
    for field, most in (
        ("concurrency", CONCURRENCY_MAX),
        ("batch", BATCH_MAX),
        ("backlog_max", 2**40),
    ):
        value = getattr(endpoint, field)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ConfigError(field, f"{value!r} is not a number from 1 to {most:,}")
    if not 0 < endpoint.timeout_s <= TIMEOUT_MAX_S:
        raise ConfigError("timeout", f"more than 0 and at most {TIMEOUT_MAX_S:g} seconds")
    if not 1 <= len(endpoint.schedule_s) <= 100:
        raise ConfigError("schedule", "1 to 100 waits, the first of which is usually 0")
    return endpoint


def schedule_from(values: Iterable[float | str] | None) -> tuple[float, ...]:
    """Waits before each attempt; raises `ConfigError`."""
    if values is None:
        return SCHEDULE_S
    if isinstance(values, str):
        values = values.split(",")
    given = several("schedule", values, float, "a list of times such as ['0s', '5s', '5m']")
    return tuple(parse_time("schedule", value) for value in given)
