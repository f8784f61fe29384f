"""Configuration as typed, frozen dataclasses; the same keys stand in `mesh.toml`.

Each field says what it means; `__post_init__` checks it, and the error names the field and what
would be right.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from meshmsg._model.codecs import Codec, codec_for
from meshmsg._model.discovery_config import DEFAULT_MESH, Discovery, check_target
from meshmsg._model.errors import EVENT_BYTES_MAX, ConfigError, TopicError
from meshmsg._model.log_policy import FsyncWord, Retention
from meshmsg._model.message_fields import ADDRESSES_MAX, STREAMS_MAX
from meshmsg._model.monitor_config import Monitor
from meshmsg._model.multicast_config import Feed, Multicast
from meshmsg._model.security_config import Security
from meshmsg._model.topics import Pattern, check_pattern, check_topic
from meshmsg._model.units import (
    addresses,
    check_count,
    check_name,
    check_text,
    one_of,
    parse_size,
    parse_time,
    set_field,
    several,
)

T = TypeVar("T")

OVERFLOW_WORDS = ("block", "buffer", "drop_oldest", "drop_newest", "spill")
DURABILITY_WORDS = ("none", "log")
ORDER_WORDS = ("none", "key")
#: Where events go that a group gave up: `dead.<group>`.
DEAD_PREFIX = "dead."
#: Leaves room in a stream's name for that prefix, and for what `dead_letters` puts behind it.
GROUP_BYTES_MAX = 96
#: Streams of others that a peer may take, with the tokens of subscriptions: less than the
#: `PREFIXES_EACH_MAX` of publishers.
STREAMS_TAKEN_MAX = 15_000
#: Streams that a peer may declare; those of dead letters come on top.
STREAMS_OF_PEER_MAX = STREAMS_MAX // 2


def check_group(field_name: str, name: object) -> str:
    """The name of a work group, which is also a topic's levels; raises `ConfigError`."""
    text = check_name(field_name, name)
    try:
        check_topic(f"{DEAD_PREFIX}{text}")
    except TopicError as error:
        raise ConfigError(field_name, f"{text!r} is not a group's name: {error.problem}") from None
    if len(text.encode()) > GROUP_BYTES_MAX:
        problem = f"{text!r}: a group's name has at most {GROUP_BYTES_MAX} bytes"
        raise ConfigError(field_name, problem)
    return text


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
    """Producers faster than consumers: `block`, `buffer`, `drop_oldest`, `drop_newest`, `spill`."""
    durability: str = "none"
    """Nodes crash or go offline: `none` keeps events in memory, `log` in a log in `data_dir`."""
    fsync: str = "batch"
    """With `log`, when events are on the disk: `always`, `batch`, `interval:50ms` or `never`."""
    retention: str | None = None
    """With `log`, how much is kept: `"7d"`, `"10GB"`, `"7d,10GB"`; `None`: all of it."""
    segment_bytes: int | str = "64MiB"
    """With `log`, the size of its files: what `retention` removes is whole files."""
    codec: str | Codec = "msgpack"
    """`msgpack`, `json`, or an object with name, encode, decode.  Bytes pass by it untouched."""
    buffer_bytes: int | str = "64MiB"
    """Memory for events that can still be asked for: repair, late joiners, slow subscribers."""
    window_bytes: int | str = "4MiB"
    """With `block`: how far a subscriber may be behind before the publisher waits for it."""
    spill_bytes: int | str = "10GiB"
    """With `spill`: what may be on disk for slow subscribers before the publisher waits."""
    evict_after: float | str | None = None
    """Seconds a subscriber may block the stream without progress; `None`: as long as it gives signs
    of life, and then `subscriber_wait_s`."""
    event_bytes_max: int | str = "16MiB"
    """Largest event taken."""
    transport: Multicast | None = None
    """`Multicast(...)`: one send reaches all; `None`: ZeroMQ to each subscriber."""
    groups: Sequence[str] = ()
    """Work groups whose events are kept from the start on, whether a member has come or not."""
    group_keep: float | str | None = None
    """How long a work group without members is kept; `None`: 10 minutes, with `log` for ever."""

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
        FsyncWord.parse(self.fsync)
        Retention.parse(self.retention)
        for word, given in (("fsync", self.fsync != "batch"), ("retention", self.retention)):
            if given and self.durability != "log":  # who writes it counts on a log
                raise ConfigError(word, "goes with durability='log': without it there is no log")
        set_field(self, "segment_bytes", parse_size("segment_bytes", self.segment_bytes))
        if self.segment_bytes < 64 * 1024:  # type: ignore[operator]
            raise ConfigError("segment_bytes", "at least 64KiB, the size of a frame")
        set_field(self, "buffer_bytes", parse_size("buffer_bytes", self.buffer_bytes))
        set_field(self, "window_bytes", parse_size("window_bytes", self.window_bytes))
        set_field(self, "spill_bytes", parse_size("spill_bytes", self.spill_bytes))
        set_field(self, "event_bytes_max", parse_size("event_bytes_max", self.event_bytes_max))
        if self.evict_after is not None:
            set_field(self, "evict_after", parse_time("evict_after", self.evict_after))
        if self.group_keep is not None:
            set_field(self, "group_keep", parse_time("group_keep", self.group_keep))
        wanted = "a name or a list of names: write groups=['workers']"
        groups = several("groups", self.groups, str, wanted)
        set_field(self, "groups", tuple(check_group("groups", group) for group in groups))
        if len(set(groups)) < len(groups):  # the second would wait for members for ever
            raise ConfigError("groups", f"{', '.join(groups)}: each name once")
        if self.event_bytes_max > EVENT_BYTES_MAX:  # type: ignore[operator]
            raise ConfigError("event_bytes_max", f"at most {EVENT_BYTES_MAX:,} bytes")
        if self.spill_bytes < 1024 * 1024:  # type: ignore[operator]
            raise ConfigError("spill_bytes", "at least 1MiB, the size of a file of it")
        if self.buffer_bytes < 64 * 1024:  # type: ignore[operator]
            raise ConfigError("buffer_bytes", "at least 64KiB, the size of a frame")
        if self.transport is not None and not isinstance(self.transport, Multicast):
            problem = "write Multicast('239.255.7.7:30001'), or leave it out for ZeroMQ"
            raise ConfigError("transport", f"{self.transport!r} is none: {problem}")

    @property
    def pattern(self) -> Pattern:
        """The compiled pattern."""
        return Pattern(self.topics)

    @property
    def label(self) -> str:
        """The name, or the pattern where there is none."""
        return self.name or self.topics


@dataclass(frozen=True, slots=True)
class Record:
    """Streams of other peers to keep in logs of our own.

    >>> Record("quotes.**", retention="7d,10GB").topics
    ('quotes.**',)
    """

    topics: Sequence[str]
    """Patterns: every stream that can carry such topics is kept, whole."""
    fsync: str = "batch"
    """When events are on the disk: `always`, `batch`, `interval:50ms` or `never`."""
    retention: str | None = None
    """How much of each stream is kept: `"7d"`, `"10GB"`, `"7d,10GB"`; `None`: all of it."""
    segment_bytes: int | str = "64MiB"
    """The size of the logs' files: what `retention` removes is whole files."""
    hold: Sequence[str] = ()
    """Cursors that hold each stream's log from its first event on; who reads it moves them."""

    def __post_init__(self) -> None:
        wanted = "a pattern or a list of patterns: write record='quotes.**'"
        topics = several("topics", self.topics, str, wanted)
        check_count("topics", topics)
        for pattern in topics:
            try:
                check_pattern(pattern)
            except TopicError as error:
                raise TopicError("topics", error.problem) from None
        set_field(self, "topics", topics)
        FsyncWord.parse(self.fsync)
        Retention.parse(self.retention)
        set_field(self, "segment_bytes", parse_size("segment_bytes", self.segment_bytes))
        if self.segment_bytes < 64 * 1024:  # type: ignore[operator]
            raise ConfigError("segment_bytes", "at least 64KiB, the size of a frame")
        held = several("hold", self.hold, str, "a name or a list of names")
        set_field(self, "hold", tuple(check_name("hold", name) for name in held))

    @classmethod
    def of(cls, value: object) -> Record | None:
        """What `record=` takes: a `Record`, patterns, or nothing; raises `ConfigError`."""
        if value is None or isinstance(value, Record):
            return value
        try:
            return cls(value)  # type: ignore[arg-type]
        except TopicError as error:
            raise TopicError("record", error.problem) from None
        except ConfigError as error:
            raise ConfigError("record", error.problem) from None


@dataclass(frozen=True, slots=True)
class Tuning:
    """Constants that a LAN and a laptop do not need to touch; seconds and bytes."""

    ping_interval_s: float = 1.0
    """How often a connected peer is asked for a sign of life."""
    peer_timeout_s: float = 5.0
    """A peer that gave no sign for this long is gone; its subscriptions are away."""
    subscriber_wait_s: float = 30.0
    """A silent subscriber whose connection stands is waited for this long, where one waits."""
    subscriber_return_s: float = 300.0
    """A subscriber that comes back within this time goes on where it was, with what is kept."""
    member_timeout_s: float = 3.0
    """A silent member of a work group is gone after this time, but not before two pings."""
    member_return_s: float = 5.0
    """After a restart a group of a durable stream waits this long for its members to come back."""
    heartbeat_min_s: float = 0.05
    """The first heartbeat after data; each following one comes twice as late."""
    heartbeat_max_s: float = 1.0
    """The longest pause between heartbeats of an idle stream."""
    repair_delay_s: float = 0.0
    """How long a gap may close by itself before it is asked for (ZeroMQ does not reorder)."""
    repair_retry_s: float = 0.2
    """The first repeat of a repair request; doubled each time."""
    repair_deadline_s: float = 5.0
    """A gap for which nothing came for this long is declared lost. Not on a durable stream: there
    only its publisher, which has the log, says what is gone."""
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
    spin_s: float = 0.0001
    """While multicast packets come this close together, a waiting subscription does not sleep."""
    close_timeout_s: float = 5.0
    """How long `close` waits for subscribers to take what they have not yet received."""
    handshake_timeout_s: float = 10.0
    """Who connects and does not get through the handshake in this time is disconnected."""
    connections_max: int = 10_000
    """Connections to each of the two ports of a peer, and at most 3/8 of the files that the process
    may open; beyond, those go first that have said nothing, of the host that has most."""
    streams_max: int = 15_000
    """Streams of other peers that one takes at a time: of one peer a third, of peers that `connect`
    does not name two thirds."""
    stream_forget_s: float = 600.0
    """A stream whose publisher has been gone for so long is forgotten, but for the place in it,
    when all of it has been handed over."""
    hold_timeout_s: float = 7 * 86_400.0
    """A consumer with `hold=True` that was not heard of for so long holds its publisher's log no
    more: retention goes on."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            wanted = int if item.type == "int" else (int, float)
            good = isinstance(value, wanted) and not isinstance(value, bool)
            low = 0 if item.name in ("repair_delay_s", "spin_s") else math.ulp(0.0)
            if not (good and low <= value < math.inf):
                raise ConfigError(f"tuning.{item.name}", f"{value!r} is not a positive {item.type}")
        if self.streams_max > STREAMS_TAKEN_MAX:  # publishers cut off who subscribes to more
            raise ConfigError("tuning.streams_max", f"at most {STREAMS_TAKEN_MAX:,}")
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
    """Where a peer without `bind` listens, and joins multicast groups: an address or a name."""
    second_interface: str | None = None
    """Where the second line of multicast streams is joined; `interface` if not given."""
    mesh: str = DEFAULT_MESH
    """Peers of different meshes refuse each other; `"default"`: what `MESHMSG_MESH` says, or
    those of this user and folder."""
    data_dir: str | None = None
    """For durable logs and cursors."""
    feeds: tuple[Feed, ...] = ()
    """Multicast streams of publishers that it has no connection to."""
    record: Record | None = None
    """Streams of other peers to keep in `data_dir` and to serve: patterns, or a `Record`."""
    discovery: Discovery | None = None
    """A `Discovery`, or `"none"`, `"auto"`, `"zeroconf"`, `"gossip"`; `None`: what
    `MESHMSG_DISCOVERY` says, or `"auto"`."""
    security: Security | None = None
    """A `Security`: keys without which nobody takes part; `None`: what `MESHMSG_KEYS`,
    `MESHMSG_MESH_KEY_FILE` or `MESHMSG_MESH_KEY` say, or none."""
    monitor: Monitor | None = None
    """Where its figures are shown: `"127.0.0.1:9401"`, or a `Monitor`; `None`: what
    `MESHMSG_MONITOR` says, or nowhere."""
    audit: bool | str = False
    """Publish who connected, was refused, was cut off and changed what, as `mesh.audit.**`;
    `"log"`: durably, in `data_dir`."""
    otel: bool | None = None
    """Whether it has traces and metrics through OpenTelemetry; `None`: what `MESHMSG_OTEL` says,
    or not."""
    tuning: Tuning = field(default_factory=Tuning)
    """Timing and limits."""

    @classmethod
    def from_toml(cls, path: str | Path) -> PeerConfig:
        """Read a `mesh.toml`; raises `ConfigError` that names the file, the table and the key."""
        return load_toml(path)

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_name("mesh", self.mesh)
        set_field(self, "bind", addresses("bind", self.bind))
        if len(self.bind) > ADDRESSES_MAX:
            raise ConfigError("bind", f"at most {ADDRESSES_MAX} addresses")
        set_field(self, "connect", addresses("connect", self.connect))
        for address in self.connect:
            check_target("connect", address)
        if self.discovery is not None:
            set_field(self, "discovery", Discovery.of(self.discovery))
        wanted = "a Stream or a list of them: write streams=[Stream('orders.**')]"
        streams = several("streams", self.streams, Stream, wanted)
        for stream in streams:
            if not isinstance(stream, Stream):
                raise ConfigError("streams", f"{stream!r} is not {wanted}")
        set_field(self, "streams", streams)
        if len(streams) > STREAMS_OF_PEER_MAX:
            raise ConfigError("streams", f"at most {STREAMS_OF_PEER_MAX:,} of one peer")
        labels = [stream.label for stream in streams]
        for label in labels:
            if labels.count(label) > 1:
                raise ConfigError("streams", f"{label!r} stands twice: give one of them a name=")
        wanted = "a Feed or a list of them: write feeds=[Feed('pricing', 'quotes.**', ...)]"
        feeds = several("feeds", self.feeds, Feed, wanted)
        for feed in feeds:
            if not isinstance(feed, Feed):
                raise ConfigError("feeds", f"{feed!r} is not {wanted}")
        set_field(self, "feeds", feeds)
        names = [feed.stream for feed in feeds]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError("feeds", f"{name!r} stands twice: one feed is enough")
        check_text("interface", self.interface)
        if self.second_interface is not None:
            check_text("second_interface", self.second_interface)
        if isinstance(self.data_dir, Path):
            set_field(self, "data_dir", str(self.data_dir))
        elif self.data_dir is not None:
            check_text("data_dir", self.data_dir)
        if self.data_dir is None:
            for stream in streams:
                if stream.durability == "log":
                    problem = f"{stream.label!r} has durability='log': say where, data_dir='./data'"
                    raise ConfigError("data_dir", problem)
        set_field(self, "record", Record.of(self.record))
        if self.record is not None and self.data_dir is None:
            raise ConfigError("data_dir", "record= keeps streams: say where, data_dir='./data'")
        if self.security is not None and not isinstance(self.security, Security):
            problem = "is not a Security: write Security(mesh_key='...') or Security(key_dir='...')"
            raise ConfigError("security", problem)
        self._check_secured()
        set_field(self, "monitor", Monitor.of(self.monitor))
        if self.audit not in (True, False, "log"):
            raise ConfigError("audit", f"{self.audit!r} is not True, False or 'log'")
        if self.audit == "log" and self.data_dir is None:
            raise ConfigError("data_dir", "audit='log' keeps a log: say where, data_dir='./data'")
        if self.otel is not None and not isinstance(self.otel, bool):
            raise ConfigError("otel", f"{self.otel!r} is not true or false")
        if not isinstance(self.tuning, Tuning):
            raise ConfigError("tuning", f"{self.tuning!r} is not a Tuning")

    def _check_secured(self) -> None:
        """Where security is asked for and a transport cannot give it, nothing starts."""
        if self.security is not None and self.security.key_dir is not None and self.feeds:
            problem = "a feed has no connection over which keys of an allow-list could come"
            raise ConfigError("feeds", f"{problem}: connect to the publisher, or use a mesh key")


def otel_from_env(given: bool | None, environ: Mapping[str, str]) -> bool | None:
    """What `otel=` says, and where it says nothing `MESHMSG_OTEL`; raises `ConfigError`."""
    text = environ.get("MESHMSG_OTEL", "")
    if given is not None or not text:
        return given
    if text not in ("0", "1"):
        raise ConfigError("MESHMSG_OTEL", f"{text!r} is not 1, for traces, or 0")
    return text == "1"


_PATHS = (
    ("peer", "data_dir"),
    ("peer", "monitor", "token_file"),
    ("security", "key_dir"),
    ("security", "mesh_key_file"),
)


def load_toml(path: str | Path) -> PeerConfig:
    """Read a `mesh.toml`; raises `ConfigError` that names the file, the table and the key.

    Paths in it are relative to the file: where the process was started says nothing about them.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from None
    for *way, key in _PATHS:
        values: Any = tables
        for table in way:
            values = values.get(table) if isinstance(values, dict) else None
        if isinstance(values, dict) and isinstance(values.get(key), str) and values[key]:
            values[key] = str(path.parent / Path(values[key]).expanduser())
    try:
        return config_from_tables(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.field}", error.problem) from None


def config_from_tables(tables: Mapping[str, Any]) -> PeerConfig:
    """A `PeerConfig` from the tables of a TOML file."""
    _only(tables, ("peer", "stream", "feed", "security"), "")
    peer = tables.get("peer")
    if not isinstance(peer, dict) or "name" not in peer:
        raise ConfigError("[peer]", "is missing, or has no name: write [peer] and name = '...'")
    streams = tables.get("stream", [])
    if not isinstance(streams, list):
        raise ConfigError("stream", "write [[stream]], with two brackets, once for each stream")
    feeds = tables.get("feed", [])
    if not isinstance(feeds, list):
        raise ConfigError("feed", "write [[feed]], with two brackets, once for each feed")
    values = dict(peer)
    tuning = values.pop("tuning", {})
    if isinstance(values.get("record"), dict):
        values["record"] = _table(Record, values["record"], "peer.record.")
    apart = ("streams", "feeds", "security", "tuning")
    known = [f.name for f in dataclasses.fields(PeerConfig) if f.name not in apart]
    _only(values, known, "peer.")
    if isinstance(values.get("discovery"), dict):  # or one of its words
        values["discovery"] = _table(Discovery, values["discovery"], "peer.discovery.")
    if isinstance(values.get("monitor"), dict):
        values["monitor"] = _table(Monitor, values["monitor"], "peer.monitor.")
    if "security" in tables:
        values["security"] = _table(Security, tables["security"], "security.")
    values |= {
        "streams": tuple(_carried(Stream, s, f"stream[{n}].") for n, s in enumerate(streams)),
        "feeds": tuple(_carried(Feed, f, f"feed[{n}].") for n, f in enumerate(feeds)),
        "tuning": _table(Tuning, tuning, "peer.tuning."),
    }
    return _make(PeerConfig, values, "peer.")


def _carried(kind: type[T], table: object, where: str) -> T:
    """A stream or a feed, whose `transport` is a table of its own or the group's address."""
    if isinstance(table, dict) and "transport" in table:
        transport = table["transport"]
        inner = {"group": transport} if isinstance(transport, str) else transport
        table = {**table, "transport": _table(Multicast, inner, f"{where}transport.")}
    return _table(kind, table, where)


def _table(kind: type[T], table: object, where: str) -> T:
    if not isinstance(table, dict):
        raise ConfigError(where.rstrip("."), "is not a table")
    fields = [f for f in dataclasses.fields(kind) if f.init]  # type: ignore[arg-type]
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
