"""Messages of nanomsg and NNG: bytes without any structure, of which topics are a convention.

Subscribers of a `pub` socket choose by the first bytes of a message, so publishers put a topic
there, mostly with a separator behind it: `orders/eu|{"id": 7}`.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import msgspec

from meshmsg._model.errors import ConfigError
from meshmsg._model.topics import check_topic

KINDS_IN = ("sub", "pull")
KINDS_OUT = ("pub", "push")
FORMATS = ("data", "event")
TOPIC_BYTES_MAX = 255
SEPARATOR_BYTES_MAX = 16
_LEVELS = re.compile(r"[./]+")
_NOT_IN_TOPICS = re.compile(r"[\s*\x00-\x1f\x7f-\x9f]+")
_decode = msgspec.json.Decoder().decode


def check_separator(separator: str) -> bytes:
    """The separator as bytes; raises `ConfigError`."""
    found = separator.encode()
    if len(found) > SEPARATOR_BYTES_MAX:
        raise ConfigError("separator", f"at most {SEPARATOR_BYTES_MAX} bytes")
    return found


def check_template(template: str, separator: bytes) -> str:
    """A topic, or one with `{topic}` for what stands before the separator; raises `ConfigError`."""
    check_topic(template.replace("{topic}", "x"))
    if "{topic}" in template and not separator:
        raise ConfigError("topic", "{topic} needs a separator, behind the topic in each message")
    return template


def take_apart(message: bytes, separator: bytes, template: str) -> tuple[str, bytes] | None:
    """Topic and payload of a message; `None` where the topic cannot be used.

    >>> take_apart(b'orders/eu|7', b'|', 'nng.{topic}')
    ('nng.orders.eu', b'7')
    >>> take_apart(b'no topic', b'|', 'nng.all')
    ('nng.all', b'no topic')
    """
    if "{topic}" not in template:
        return template, message
    head, found, payload = message.partition(separator)
    if not found:
        return None
    try:
        text = head.decode()
    except UnicodeDecodeError:
        return None
    levels = [_NOT_IN_TOPICS.sub("_", level) for level in _LEVELS.split(text) if level]
    topic = template.replace("{topic}", ".".join(levels))
    if not levels or len(topic.encode()) > TOPIC_BYTES_MAX:
        return None
    return topic, payload


def put_together(topic: str, payload: bytes, separator: bytes) -> bytes:
    """A message: topic, separator, payload; without a separator the payload alone."""
    return topic.encode() + separator + payload if separator else payload


def payload_from(data: Any) -> bytes:
    """Bytes as they are, text as UTF-8, everything else as JSON."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return data.encode(errors="replace")
    try:
        return msgspec.json.encode(data, enc_hook=repr)
    except (TypeError, ValueError):  # keys that are not text
        return repr(data).encode(errors="replace")


def event_json(shown: dict[str, Any], data: Any) -> bytes:
    """An event as a JSON object; bytes that are no text as `data_b64`."""
    if isinstance(data, bytes):
        try:
            return payload_from(shown | {"data": data.decode()})
        except UnicodeDecodeError:
            return payload_from(shown | {"data_b64": base64.b64encode(data).decode()})
    return payload_from(shown | {"data": data})


def data_from(payload: bytes, json: bool) -> Any:
    """The payload, decoded if it is JSON and that is asked for."""
    if not json:
        return payload
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return payload
