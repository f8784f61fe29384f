"""Configuration as typed, frozen dataclasses; the same keys stand in `mesh.toml`.

Each field says what it means; `__post_init__` checks it, and the error names the field and what
would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from meshmsg._codecs import Codec, codec_for
from meshmsg._errors import ConfigError, TopicError
from meshmsg._frame import FRAME_BYTES_MAX
from meshmsg._topics import Pattern, check_pattern

T = TypeVar("T")

OVERFLOW_WORDS = ("block", "buffer", "drop_oldest", "drop_newest")
DURABILITY_WORDS = ("none",)
NAME_BYTES_MAX = 128

# At most 18 digits: what follows is arithmetic in floats.
_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*(?:([kKmMgG])(i?))?[bB]?\s*\Z")
_TIME = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*(ms|s|m|h|d|)\s*\Z")
_PORT = re.compile(r"[0-9]{1,5}")
_TIME_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(field_name: str, value: int | str) -> int:
    """Bytes from `65536`, `"64kB"`, `"64KiB"`, `"1.5GB"`; raises `ConfigError`."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is not None:
        power = {"": 0, "k": 1, "m": 2, "g": 3}[(match[2] or "").lower()]
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


def addresses(field_name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """One address or several, each checked."""
    given = _several(field_name, value, str, "an address or a list of addresses")
    return tuple(check_address(field_name, address) for address in given)


def _several(field_name: str, value: object, kind: type, wanted: str) -> tuple[Any, ...]:
    """One of a kind, or several, as a tuple; what is in it is not looked at."""
    if isinstance(value, kind):
        return (value,)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(field_name, f"{value!r} is not {wanted}")
    return tuple(value)


def _check_text(field_name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(field_name, f"{value!r} is not a text: write it in quotes")


def _set(config: object, name: str, value: object) -> None:
    object.__setattr__(config, name, value)


@dataclass(frozen=True, slots=True)
class Stream:
    """One ordered, numbered sequence of events under one policy.

    >>> Stream("orders.**", overflow="block", evict_after="30s").evict_after
    30.0
    """

    topics: str
    """Pattern of the topics it carries: `*` is one level, `**` any number of levels."""
    name: str | None = None
    """Name within the peer; the pattern itself if not given."""
    overflow: str = "buffer"
    """Producers faster than consumers: `block`, `buffer`, `drop_oldest` or `drop_newest`."""
    durability: str = "none"
    """Nodes crash or go offline: `none` keeps events in memory only."""
    codec: str | Codec = "msgpack"
    """`msgpack`, `json`, or an object with name, encode, decode.  Bytes pass by it untouched."""
    buffer_bytes: int | str = "64MiB"
    """Memory for events that can still be asked for: repair, late joiners, slow subscribers."""
    window_bytes: int | str = "4MiB"
    """With `block`: how far a subscriber may be behind before the publisher waits for it."""
    evict_after: float | str | None = None
    """Seconds a subscriber may block the stream without progress; `None`: as long as it lives."""
    event_bytes_max: int | str = "16MiB"
    """Largest event taken."""

    def __post_init__(self) -> None:
        try:
            check_pattern(self.topics)
        except TopicError as error:
            raise TopicError("topics", error.problem) from None
        if self.name is not None:
            check_name("stream.name", self.name)
        one_of("overflow", self.overflow, OVERFLOW_WORDS)
        one_of("durability", self.durability, DURABILITY_WORDS)
        codec_for(self.codec)
        _set(self, "buffer_bytes", parse_size("buffer_bytes", self.buffer_bytes))
        _set(self, "window_bytes", parse_size("window_bytes", self.window_bytes))
        _set(self, "event_bytes_max", parse_size("event_bytes_max", self.event_bytes_max))
        if self.evict_after is not None:
            _set(self, "evict_after", parse_time("evict_after", self.evict_after))
        if self.event_bytes_max > FRAME_BYTES_MAX // 2:  # type: ignore[operator]
            raise ConfigError("event_bytes_max", f"at most {FRAME_BYTES_MAX // 2:,} bytes")
        if self.buffer_bytes < 64 * 1024:  # type: ignore[operator]
            raise ConfigError("buffer_bytes", "at least 64KiB, the size of a frame")

    @property
    def pattern(self) -> Pattern:
        """The compiled pattern."""
        return Pattern(self.topics)

    @property
    def label(self) -> str:
        """The name, or the pattern where there is none."""
        return self.name or self.topics


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants that a LAN and a laptop do not need to touch; seconds and bytes."""

    ping_interval_s: float = 0.5
    """How often a connected peer is asked for a sign of life."""
    peer_timeout_s: float = 5.0
    """A peer that gave no sign for this long is gone."""
    heartbeat_min_s: float = 0.05
    """The first heartbeat after data; each following one comes twice as late."""
    heartbeat_max_s: float = 1.0
    """The longest pause between heartbeats of an idle stream."""
    repair_delay_s: float = 0.0
    """How long a gap may close by itself before it is asked for (ZeroMQ does not reorder)."""
    repair_retry_s: float = 0.2
    """The first repeat of a repair request; doubled each time."""
    repair_deadline_s: float = 5.0
    """A gap for which nothing came for this long is declared lost."""
    repair_bytes_max: int = 4 * 1024 * 1024
    """Answered to one repair request at most; the subscriber asks again for the rest."""
    inbox_bytes_max: int = 8 * 1024 * 1024
    """What a subscription reads ahead of its consumer."""
    pending_bytes_max: int = 64 * 1024 * 1024
    """What a subscription holds behind a gap while it is being repaired."""
    frame_bytes: int = 128 * 1024
    """A frame under load is closed at about this size."""
    push_bytes_max: int = 1024 * 1024
    """A larger frame is announced and fetched by each subscriber at its own speed."""
    queue_frames: int = 512
    """Frames that ZeroMQ may queue for one subscriber (its high-water mark)."""
    close_timeout_s: float = 5.0
    """How long `close` waits for subscribers to take what they have not yet received."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            wanted = int if item.type == "int" else (int, float)
            good = isinstance(value, wanted) and not isinstance(value, bool)
            low = 0 if item.name == "repair_delay_s" else math.ulp(0.0)
            if not (good and low <= value < math.inf):
                raise ConfigError(f"tuning.{item.name}", f"{value!r} is not a positive {item.type}")
        if self.heartbeat_min_s > self.heartbeat_max_s:
            raise ConfigError("tuning.heartbeat_min_s", "is greater than heartbeat_max_s")
        if self.ping_interval_s * 2 > self.peer_timeout_s:
            raise ConfigError("tuning.ping_interval_s", "must be at most half of peer_timeout_s")


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """All that a peer is made of; `mesh.toml` has the same keys under `[peer]` and `[[stream]]`."""

    name: str
    """Name of the peer, one in a mesh."""
    streams: tuple[Stream, ...] = ()
    """What it publishes.  A peer that declares none publishes all topics in one stream."""
    bind: tuple[str, ...] = ()
    """Addresses that others connect to; a free loopback port if none is given."""
    connect: tuple[str, ...] = ()
    """Addresses of peers to connect to."""
    interface: str = "127.0.0.1"
    """Where a peer without `bind` listens."""
    mesh: str = "default"
    """Peers of different meshes refuse each other."""
    data_dir: str | None = None
    """For durable logs and cursors."""
    tuning: Tuning = field(default_factory=Tuning)
    """Timing and limits."""

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_name("mesh", self.mesh)
        _set(self, "bind", addresses("bind", self.bind))
        _set(self, "connect", addresses("connect", self.connect))
        for address in self.connect:
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            if address.startswith("tcp://") and (host == "*" or port in ("*", "0")):
                raise ConfigError("connect", f"{address!r}: name the host and port to connect to")
        wanted = "a Stream or a list of them: write streams=[Stream('orders.**')]"
        streams = _several("streams", self.streams, Stream, wanted)
        for stream in streams:
            if not isinstance(stream, Stream):
                raise ConfigError("streams", f"{stream!r} is not {wanted}")
        _set(self, "streams", streams)
        labels = [stream.label for stream in streams]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError("streams", f"{label!r} stands twice: give one of them a name=")
        _check_text("interface", self.interface)
        if isinstance(self.data_dir, Path):
            _set(self, "data_dir", str(self.data_dir))
        elif self.data_dir is not None:
            _check_text("data_dir", self.data_dir)
        if not isinstance(self.tuning, Tuning):
            raise ConfigError("tuning", f"{self.tuning!r} is not a Tuning")


def load_toml(path: str | Path) -> PeerConfig:
    """Read a `mesh.toml`; raises `ConfigError` that names the file, the table and the key."""
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from None
    try:
        return config_from_tables(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.field}", error.problem) from None


def config_from_tables(tables: Mapping[str, Any]) -> PeerConfig:
    """A `PeerConfig` from the tables of a TOML file."""
    _only(tables, ("peer", "stream"), "")
    peer = tables.get("peer")
    if not isinstance(peer, dict) or "name" not in peer:
        raise ConfigError("[peer]", "is missing, or has no name: write [peer] and name = '...'")
    streams = tables.get("stream", [])
    if not isinstance(streams, list):
        raise ConfigError("stream", "write [[stream]], with two brackets, once for each stream")
    values = dict(peer)
    tuning = values.pop("tuning", {})
    known = [f.name for f in dataclasses.fields(PeerConfig) if f.name not in ("streams", "tuning")]
    _only(values, known, "peer.")
    built = tuple(_table(Stream, entry, f"stream[{n}].") for n, entry in enumerate(streams))
    values |= {"streams": built, "tuning": _table(Tuning, tuning, "peer.tuning.")}
    return _make(PeerConfig, values, "peer.")


def _table(kind: type[T], table: object, where: str) -> T:
    if not isinstance(table, dict):
        raise ConfigError(where.rstrip("."), "is not a table")
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    _only(table, [f.name for f in fields], where)
    for f in fields:
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and f.name not in table:
            raise ConfigError(where + f.name, "is missing")
    return _make(kind, table, where)


def _make(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build it; an error names the key by its full way through the tables."""
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(where + error.field.rpartition(".")[2], error.problem) from None


def _only(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigError(where + key, f"is not a key here: use {', '.join(known)}{hint}")
