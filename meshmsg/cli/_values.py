"""Events, losses and payloads as JSON and as text that is safe to show in a terminal."""

from __future__ import annotations

import base64
import math
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from meshmsg import Event, Loss, PayloadError

# What would move the cursor, ring a bell or reverse the text of a terminal.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def _plain(value: Any) -> Any:
    """For what JSON has no form for, such as msgpack's extension types."""
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "data_b64": base64.b64encode(value.data).decode()}
    return repr(value)


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def to_json(value: Any) -> str:
    """JSON text on one line; what JSON has no form for becomes text: `"inf"`, `"nan"`."""
    try:
        text = _encode(value)
        if b"null" not in text:
            return text.decode()
    except (TypeError, ValueError, RecursionError):  # keys that are not text, for example
        pass
    return _encode(_representable(value)).decode()  # a float that is not finite is null, too


def _representable(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else repr(key): _representable(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_representable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def event_object(event: Event) -> dict[str, Any]:
    """An event for `--json`; `meshmsg pub --events` reads the same form."""
    shown: dict[str, Any] = {
        "topic": event.topic,
        "key": event.key,
        "headers": dict(event.headers),
        "time": iso_time(event.time_ns),
        "position": str(event.position),
    }
    if event.attempt > 1:
        shown["attempt"] = event.attempt
    try:
        data = event.data
    except PayloadError as error:
        return shown | {"error": str(error), "data_b64": base64.b64encode(event.payload).decode()}
    if not isinstance(data, bytes):
        return shown | {"data": data}
    text = _utf8(data)
    if text is None:
        return shown | {"data_b64": base64.b64encode(data).decode()}
    return shown | {"data": text, "bytes": True}


def loss_object(loss: Loss) -> dict[str, Any]:
    """A loss for `--json`."""
    return {
        "loss": {
            "stream": loss.stream,
            "epoch": loss.epoch,
            "first": loss.first,
            "stop": loss.stop,
            "count": loss.count,
            "reason": loss.reason,
        }
    }


def data_text(event: Event) -> str:
    """The payload on one line: text as it is, bytes as text or base64, all else as JSON."""
    try:
        data = event.data
    except PayloadError as error:
        return safe(f"<{error}>")
    if isinstance(data, bytes):
        text = _utf8(data)
        return f"base64:{base64.b64encode(data).decode()}" if text is None else safe(text)
    return safe(data if isinstance(data, str) else to_json(data))


def safe(text: str) -> str:
    """Text from elsewhere, on one line and without power over the terminal."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def iso_time(time_ns: int) -> str:
    """UTC with microseconds, as `--start` reads it."""
    try:
        moment = datetime.fromtimestamp(time_ns // 1_000_000_000, UTC)
    except (OverflowError, ValueError, OSError):  # a publisher's clock may say anything
        return str(time_ns)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % 1_000_000_000 // 1000:06d}Z"


def clock_time(time_ns: int) -> str:
    """The local time of day with milliseconds."""
    try:
        moment = datetime.fromtimestamp(time_ns // 1_000_000_000)
    except (OverflowError, ValueError, OSError):
        return str(time_ns)
    return f"{moment:%H:%M:%S}.{time_ns % 1_000_000_000 // 1_000_000:03d}"
