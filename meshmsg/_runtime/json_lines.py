"""`JsonLogFormatter`: log lines as JSON, one object a line, with peer, stream and position.

A line about a stream says so with `extra={"stream": ...}`; one about a loss or an event has that
among its values, or its position in the text.  Others caused many of these lines: whatever they
said is a string of JSON, and never ends a line.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from meshmsg._model.event import Loss, Position

#: A position as `str(position)` has it; it may stand in brackets or before a colon.
_POSITION = re.compile(r"([^\s'\"(]+/[^\s'\"]+)@(\d{1,19}):(\d{1,19})")
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class JsonLogFormatter(logging.Formatter):
    """A formatter for any handler: `time`, `level`, `logger`, `message`, and where there are such
    `peer`, `stream`, `position`, `error` (an exception) and `trace`.

    >>> handler = logging.StreamHandler()
    >>> handler.setFormatter(JsonLogFormatter(peer="shop"))
    >>> logging.getLogger("meshmsg").addHandler(handler)                      # doctest: +SKIP
    """

    def __init__(self, peer: str = "") -> None:
        super().__init__()
        self.peer = peer  #: of lines that do not name one

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        message = record.getMessage()
        line: dict[str, Any] = {
            "time": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if peer := getattr(record, "peer", "") or self.peer:
            line["peer"] = peer
        line |= _about(record, message)
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = f"{type(error).__name__}: {error}"
            line["trace"] = "".join(traceback.format_exception(error))
        return _encode(_encodable(line)).decode()


def _about(record: logging.LogRecord, message: str) -> dict[str, str]:
    """The stream and the position that a line is about, as far as it says so."""
    for position in _positions(record, message):
        return {"stream": position.stream, "position": str(position)}
    stream = getattr(record, "stream", "")
    return {"stream": str(stream)} if stream else {}


def _positions(record: logging.LogRecord, message: str) -> Iterator[Position]:
    for value in record.args if isinstance(record.args, tuple) else ():
        if isinstance(value, Loss):
            yield Position(value.stream, value.epoch, value.first)
        elif isinstance(value, Position):
            yield value
    if found := _POSITION.search(message):
        yield Position(found[1], int(found[2]), int(found[3]))


def _encodable(line: dict[str, Any]) -> dict[str, str]:
    """Text that UTF-8 can carry: names of files may hold half a character."""
    return {key: str(text).encode("utf-8", "replace").decode() for key, text in line.items()}
