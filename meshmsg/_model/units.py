"""Values as users write them: sizes, times, words, names and addresses, each with its error."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshmsg._model.errors import ConfigError

NAME_BYTES_MAX = 128
#: Patterns of one subscription: whoever is asked looks through all of them.
PATTERNS_MAX = 1024
#: All of them together: they have to fit a message.
PATTERNS_BYTES_MAX = 32 * 1024

# At most 18 digits: what follows is arithmetic in floats.
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*(?:([kKmMgGtT])(i?))?[bB]?\s*\Z")
_TIME = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*(us|ms|s|m|h|d|)\s*\Z")
_PORT = re.compile(r"[0-9]{1,5}")
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(field_name: str, value: int | str) -> int:
    """Bytes from `65536`, `"64kB"`, `"64KiB"`, `"1.5GB"`, `"2TB"`; raises `ConfigError`."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is not None:
        power = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}[(match[2] or "").lower()]
        size = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
        if size > 0:
            return size
    raise ConfigError(field_name, f"{value!r} is not a size: write 65536, '64kB' or '64MiB'")


def parse_time(field_name: str, value: float | str) -> float:
    """Seconds from `0.5`, `"500ms"`, `"30s"`, `"5m"`; raises `ConfigError`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    match = _TIME.match(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(field_name, f"{value!r} is not a time: write 0.5, '500ms' or '30s'")
    return float(match[1]) * _TIME_UNITS[match[2]]


def one_of(field_name: str, value: object, words: Sequence[str]) -> str:
    """The value if it is one of the words; raises `ConfigError` that lists them."""
    if isinstance(value, str) and value in words:
        return value
    close = difflib.get_close_matches(str(value), words, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ConfigError(field_name, f"{value!r} is not one of {', '.join(words)}{hint}")


def check_name(field_name: str, name: object) -> str:
    """A peer, mesh or stream name; raises `ConfigError`."""
    if isinstance(name, str) and any(c.isspace() or c in "/@" or not c.isprintable() for c in name):
        problem = f"{name!r} may not have spaces, '/', '@' or control characters"
        raise ConfigError(field_name, problem)
    if not isinstance(name, str) or not name or len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(field_name, f"{name!r} is not a name of 1 to {NAME_BYTES_MAX} bytes")
    return name


def check_count(field_name: str, patterns: Sequence[str]) -> None:
    """At least one pattern, and not too many of them; raises `ConfigError`."""
    if not patterns:
        raise ConfigError(field_name, "name at least one pattern, for example '**'")
    if len(patterns) > PATTERNS_MAX:
        problem = f"{len(patterns):,} patterns are more than {PATTERNS_MAX:,}: use '*' and '**'"
        raise ConfigError(field_name, problem)
    size = sum(len(str(pattern).encode("utf-8", "replace")) for pattern in patterns)
    if size > PATTERNS_BYTES_MAX:
        problem = f"{size:,} bytes of patterns are more than {PATTERNS_BYTES_MAX:,}: use '**'"
        raise ConfigError(field_name, problem)


def check_address(field_name: str, address: object) -> str:
    """A `tcp://host:port` or `ipc://path` address; raises `ConfigError`."""
    if isinstance(address, str):
        scheme, found, rest = address.partition("://")
        if found and scheme == "ipc" and rest:
            return address
        host, colon, port = rest.rpartition(":")
        if found and scheme == "tcp" and colon and host:
            if port == "*" or (_PORT.fullmatch(port) and int(port) <= 65535):
                return address
            raise ConfigError(field_name, f"{address!r}: a port is a number up to 65535, or *")
    raise ConfigError(
        field_name, f"{address!r} is not an address: write tcp://127.0.0.1:7000 or ipc:///tmp/name"
    )


def split_host(field_name: str, value: object) -> tuple[str, int]:
    """Host and port from `127.0.0.1:8125` or `[::1]:8125`; raises `ConfigError`."""
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    bare = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
    if not colon or not bare or not _PORT.fullmatch(port) or int(port) > 65535:
        problem = f"{value!r} is not a host and a port: write 127.0.0.1:8125 or [::1]:8125"
        raise ConfigError(field_name, problem)
    return bare, int(port)


def addresses(field_name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """One address or several, each checked."""
    given = several(field_name, value, str, "an address or a list of addresses")
    return tuple(check_address(field_name, address) for address in given)


def several(field_name: str, value: object, kind: type, wanted: str) -> tuple[Any, ...]:
    """One of a kind, or several, as a tuple; what is in it is not looked at."""
    if isinstance(value, kind):
        return (value,)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(field_name, f"{value!r} is not {wanted}")
    return tuple(value)


def check_text(field_name: str, value: object) -> None:
    """Some text, not empty; raises `ConfigError`."""
    if not isinstance(value, str) or not value:
        raise ConfigError(field_name, f"{value!r} is not a text: write it in quotes")


def set_field(config: object, name: str, value: object) -> None:
    """Set a field of a frozen dataclass while it is being made."""
    object.__setattr__(config, name, value)
