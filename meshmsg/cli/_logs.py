"""The library's log messages, as lines on standard error."""

from __future__ import annotations

import enum
import logging
from collections import deque

from meshmsg import JsonLogFormatter
from meshmsg.cli._values import safe

RECENT_MAX = 100


class LogLevel(enum.StrEnum):
    """How much to show."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"
    off = "off"


class LogFormat(enum.StrEnum):
    """How to show it."""

    text = "text"
    json = "json"


class _SafeFormatter(logging.Formatter):
    """What peers said, a reason or a name, is shown on one line and without power over it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name there
        """The line, without a traceback."""
        return safe(super().formatMessage(record))


class _Lines(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error and remembers what it wrote."""

    def __init__(self, format: LogFormat) -> None:
        super().__init__()
        self.recent: deque[str] = deque(maxlen=RECENT_MAX)
        self.json = JsonLogFormatter() if format is LogFormat.json else None
        self.setFormatter(self.json or _SafeFormatter("meshmsg: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.recent.append(record.getMessage())
        super().emit(record)


_lines: _Lines | None = None


def write_logs(level: LogLevel, format: LogFormat = LogFormat.text) -> None:
    """Show messages of this level and above."""
    global _lines
    logger = logging.getLogger("meshmsg")
    logger.propagate = False
    if _lines is not None:
        logger.removeHandler(_lines)
    _lines = _Lines(format)
    logger.addHandler(_lines)
    off = logging.CRITICAL + 1
    logger.setLevel(off if level is LogLevel.off else level.value.upper())


def name_peer(name: str) -> None:
    """Lines of JSON say from now on that they are of this peer."""
    if _lines is not None and _lines.json is not None:
        _lines.json.peer = name


def was_logged(text: str) -> bool:
    """Whether this very text was shown a moment ago."""
    return _lines is not None and text in _lines.recent
