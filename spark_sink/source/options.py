"""The options of the Spark source: read once, checked, and never asked again.

Belongs here: what a user may write in `.option(...)` and what is said to one who wrote something
else.  Names are Spark's habit (`camelCase`, any case is taken).
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from meshmsg import ConfigError
from meshmsg._model.topics import check_pattern, foreign_wildcards
from meshmsg._model.units import addresses, parse_time
from meshmsg.spark_sink.source.ddl import is_nested, parse_columns
from meshmsg.spark_sink.source.positions import parse_positions

log = logging.getLogger("meshmsg.spark_sink")

NAMES = (
    "topics",
    "path",
    "peers",
    "mesh",
    "startingPosition",
    "endingPosition",
    "maxEventsPerTrigger",
    "failOnLoss",
    "payload",
    "rows",
    "partitions",
    "peerTimeout",
)
ROWS = ("events", "losses", "all")
PAYLOADS = ("binary", "json", "variant")
PARTITIONS_MAX = 100_000
_NUMBER = re.compile(r"[0-9]{1,18}")
_TIME = re.compile(r"-?[0-9]{4,}-[0-9]{2}-[0-9]{2}.*|[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Place:
    """Where to start or to end: a word, a time, or positions."""

    word: str = ""
    time_ns: int | None = None
    positions: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """What a user asked for."""

    topics: tuple[str, ...] = ("**",)
    """Patterns; events of other topics are left out."""
    path: str | None = None
    """A `data_dir` with logs, or the folder of one stream."""
    peers: tuple[str, ...] = ()
    """Addresses of peers or recorders that replay."""
    mesh: str = "default"
    """The mesh of those peers."""
    start: Place = Place("earliest")
    """Where a new query begins."""
    end: Place = Place("latest")
    """Where a batch query ends."""
    events_max: int | None = None
    """At most so many events in a micro-batch."""
    fail_on_loss: bool = True
    """Whether lost events stop the query."""
    payload: str = "binary"
    """`binary`, `json`, `variant`, or columns as DDL."""
    rows: str = "events"
    """`events`, `losses`, or `all` of both."""
    partitions: int = 0
    """Tasks of a batch; 0 for as many as this machine has cores."""
    peer_timeout_s: float = 300.0
    """How long a task waits for a peer that does not answer."""

    @property
    def cores(self) -> int:
        """Tasks that a large batch is split into."""
        return self.partitions or available_cores()


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_options(given: Mapping[str, str]) -> Options:
    """Check what was given; raises `ConfigError` that names the option and what would be right."""
    known = {name.lower(): name for name in NAMES}
    values: dict[str, str] = {}
    for key, value in given.items():
        name = known.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), known, 1)
            hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(NAMES)}"
            raise ConfigError(f"option {key}", f"is not known to format meshmsg; {hint}")
        values[name] = str(value).strip()
    path, peers = values.get("path"), _list(values.get("peers", ""))
    if not path and not peers:
        problem = "give the folder of the logs, or option peers with addresses (tcp://host:port)"
        raise ConfigError("option path", problem)
    return Options(
        topics=_topics(values.get("topics", "**")),
        path=_path(path) if path else None,
        peers=addresses("option peers", peers) if peers else (),
        mesh=values.get("mesh", "default"),
        start=_place("startingPosition", values.get("startingPosition", "earliest")),
        end=_place("endingPosition", values.get("endingPosition", "latest")),
        events_max=_count("maxEventsPerTrigger", values.get("maxEventsPerTrigger"), 1, 1 << 53),
        fail_on_loss=_flag("failOnLoss", values.get("failOnLoss", "true")),
        payload=check_payload("option payload", values.get("payload", "binary")),
        rows=_one_of("rows", values.get("rows", "events"), ROWS),
        partitions=_count("partitions", values.get("partitions"), 1, PARTITIONS_MAX) or 0,
        peer_timeout_s=parse_time("option peerTimeout", values.get("peerTimeout", "300s")),
    )


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[,\s]+", text) if part)


def _topics(text: str) -> tuple[str, ...]:
    patterns = _list(text)
    if not patterns:
        raise ConfigError("option topics", "is empty; write '**' for all, or 'orders.**,quotes.*'")
    for pattern in patterns:
        if hint := foreign_wildcards(pattern):
            log.warning("option topics: %r: %s", pattern, hint)
    try:
        return tuple(check_pattern(pattern) for pattern in patterns)
    except ConfigError as error:
        raise ConfigError("option topics", error.problem) from None


def path_of_file_uri(field: str, text: str) -> str:
    """The path of `file:/a`, `file:///a` or `file://localhost/a`; raises `ConfigError`."""
    rest = text.partition(":")[2]
    host = rest[2:].partition("/")[0] if rest.startswith("//") else ""
    if host not in ("", "localhost"):
        raise ConfigError(field, f"{text!r} is on host {host}: for a folder here write file:///...")
    return os.path.abspath("/" + rest.removeprefix(f"//{host}").lstrip("/"))


def _path(text: str) -> str:
    scheme, mark, rest = text.partition(":")
    if mark and scheme == "file":
        return path_of_file_uri("option path", text)
    if mark and "/" not in scheme and rest.startswith("//"):
        problem = (
            f"{text!r}: logs are read from a folder that driver and executors see (a local disk, "
            f"NFS), not from {scheme}; over the network use option peers"
        )
        raise ConfigError("option path", problem)
    return os.path.abspath(text)


def _place(name: str, text: str) -> Place:
    lower = text.lower()
    if lower in ("earliest", "latest"):
        if name == "endingPosition" and lower == "earliest":
            raise ConfigError("option endingPosition", "'earliest' would read nothing")
        return Place(lower)
    if text.startswith("{"):
        return Place(positions=tuple(parse_positions(text, f"option {name}").items()))
    if _TIME.fullmatch(text):
        return Place(time_ns=_time_ns(name, text))
    problem = (
        f"{text!r} is not 'earliest', 'latest', a time ('2026-11-16T12:00:00Z' or seconds since "
        f"1970), or JSON of positions ('{{\"pricing/orders.**/1700000000000000\": 41}}')"
    )
    raise ConfigError(f"option {name}", problem)


def _time_ns(name: str, text: str) -> int:
    try:
        return int(float(text) * 1e9) if "-" not in text else _iso_ns(text)
    except ValueError as error:
        problem = f"{text!r} is not a time: {error}; write '2026-11-16T12:00:00Z'"
        raise ConfigError(f"option {name}", problem) from None


def _iso_ns(text: str) -> int:
    when = datetime.fromisoformat(text)
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def _count(name: str, text: str | None, low: int, high: int) -> int | None:
    if text is None:
        return None
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise ConfigError(f"option {name}", f"{text!r} is not a whole number from {low} on")
    return int(text)


def _flag(name: str, text: str) -> bool:
    return _one_of(name, text.lower(), ("true", "false")) == "true"


def _one_of(name: str, text: str, words: tuple[str, ...]) -> str:
    if text.lower() not in words:
        raise ConfigError(f"option {name}", f"{text!r} is not one of {', '.join(words)}")
    return text.lower()


def check_payload(where: str, text: str) -> str:
    """What payloads are: a word, or columns as DDL; raises `ConfigError`.

    Spark takes a while to start: what it would not take is found here.
    """
    if text.lower() in PAYLOADS:
        return text.lower()
    # One word is no declaration of a column: more likely a word that there is not.
    if len(text.replace(":", " ").split()) < 2 and "<" not in text:
        problem = (
            f"{text!r} is not one of {', '.join(PAYLOADS)}, and not columns as DDL: write "
            f"'id BIGINT, price DOUBLE' or 'STRUCT<id: BIGINT, price: DOUBLE>'"
        )
        raise ConfigError(where, problem)
    parse_columns(where, f"payload {text}" if is_nested(text) else text)
    return text
