"""What `meshmsg pub` publishes: events from its arguments or from lines of standard input."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from typing import Any

import msgspec

from meshmsg.cli._guard import usage

_PLACE = re.compile(r"\{(\w+)\}")
_EVENT_FIELDS = ("topic", "key", "headers", "data", "data_b64", "bytes", "time", "position")

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Item:
    """One event to be published."""

    topic: str
    data: Any
    key: str | None = None
    headers: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """How arguments or lines become events."""

    topic: str | None
    key: str | None = None
    headers: Mapping[str, str] | None = None
    json: bool = False
    events: bool = False

    def item(self, text: bytes, number: int, where: str) -> Item:
        """The event for one argument or line; raises `ConfigError`."""
        if self.events:
            return self._whole(_read_json(text, where), number, where)
        data = _read_json(text, where) if self.json else _read_text(text)
        return Item(
            self._topic(data, number, where),
            data,
            None if self.key is None else fill(self.key, number, data, where),
            self.headers,
        )

    def _topic(self, data: Any, number: int, where: str) -> str:
        if self.topic is None:
            raise usage(where, "there is no topic: name one on the command line")
        return fill(self.topic, number, data, where)

    def _whole(self, event: Any, number: int, where: str) -> Item:
        """A line as `meshmsg sub --json` prints it: its own fields win over the command line's."""
        if not isinstance(event, dict) or not event.keys() & {"data", "data_b64"}:
            raise usage(where, 'is not an event: write {"topic": "a.b", "data": 1}')
        for name in event:
            if name not in _EVENT_FIELDS:
                known = ", ".join(_EVENT_FIELDS)
                raise usage(where, f"{name!r} is not a field of an event: use {known}")
        data = _event_data(event, where)
        topic = event.get("topic")
        key = event.get("key")
        return Item(
            self._topic(data, number, where) if topic is None else topic,
            data,
            fill(self.key, number, data, where) if key is None and self.key is not None else key,
            event.get("headers") or self.headers,
        )


def fill(template: str, number: int, data: Any, where: str) -> str:
    """Put the event's number for `{n}` and the fields of its data for `{field}`.

    >>> fill("quotes.{symbol}", 1, {"symbol": "AAPL"}, "line 1")
    'quotes.AAPL'
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name == "n":
            return str(number)
        if isinstance(data, dict) and name in data:
            return str(data[name])
        raise usage(where, f"has no field {name!r} for {template!r}; fields need --json")

    return _PLACE.sub(value, template) if "{" in template else template


def from_argument(form: Form, data: str, count: int) -> Iterator[Item]:
    """The same event `count` times, numbered; for ever if that is 0."""
    for number in range(1, count + 1) if count else numbers(1):
        yield form.item(data.replace("{n}", str(number)).encode(), number, "DATA")


def from_lines(form: Form, lines: Iterable[bytes], count: int) -> Iterator[Item]:
    """An event for each line, and not more than `count` unless that is 0."""
    skip_blank = form.json or form.events
    number = 0
    for place, line in enumerate(lines, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if skip_blank and not text.strip():
            continue
        number += 1
        yield form.item(text, number, f"line {place}")
        if number == count:
            return


def parse_headers(pairs: Sequence[str]) -> dict[str, str] | None:
    """Headers from `name=value`; raises `ConfigError`."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise usage("--header", f"{pair!r} is not of the form name=value")
        headers[name] = value
    return headers or None


def _read_text(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text  # not text: bytes pass through untouched


def _read_json(text: bytes, where: str) -> Any:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = text[:40].decode(errors="replace")
        raise usage(where, f"{shown!r} is not JSON: {error}") from None


def _event_data(event: Mapping[str, Any], where: str) -> Any:
    if "data_b64" not in event:
        data = event["data"]
        return data.encode() if event.get("bytes") and isinstance(data, str) else data
    try:
        return base64.b64decode(event["data_b64"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise usage(where, "data_b64 is not base64") from None
