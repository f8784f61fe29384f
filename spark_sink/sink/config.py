"""What the sink daemon is told: outputs, where the events come from, and how Spark runs.

Belongs here: the settings as they are written on the command line or in a `sink.toml`, and what is
said to one who wrote something else.  Does not belong here: the mesh's own settings (`[peer]`, as
in a `mesh.toml`).
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshmsg import ConfigError, PeerConfig, Record
from meshmsg._model.config import config_from_tables
from meshmsg._model.topics import check_pattern
from meshmsg._model.units import one_of, parse_time, set_field, several
from meshmsg.spark_sink.source.options import check_payload, path_of_file_uri

FORMATS = ("parquet", "delta", "iceberg")
DERIVED = {"date": "to_date(time)", "hour": "hour(time)"}
"""Columns that `partition_by` may name though events have none of that name."""
MAX_EVENTS = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}")
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MASTER = re.compile(
    r"local|local\[([1-9][0-9]*|\*)(\s*,\s*[1-9][0-9]*)?\]|local-cluster\[[0-9,\s]+\]"
    r"|spark://[^\s/]+:[0-9]+|yarn|k8s://\S+"
)
#: Java takes them as they are, and does not start with others.
_MEMORY = ("spark.driver.memory", "spark.executor.memory")
_MEMORY_SIZE = re.compile(r"[1-9][0-9]*[kmgtKMGT]?")


@dataclass(frozen=True, slots=True)
class Output:
    """One table that is written."""

    out: str
    """The table's folder."""
    name: str = ""
    """The name of the query, of its checkpoint and of its cursor; the folder's if not given."""
    format: str = "parquet"
    """`parquet`, `delta` or `iceberg`."""
    topics: tuple[str, ...] = ("**",)
    """Patterns; events of other topics are left out."""
    partition_by: tuple[str, ...] = ()
    """Columns that become folders; `date` and `hour` are those of the event's time."""
    payload: str = "binary"
    """`binary`, `json`, `variant`, or columns as DDL: `id BIGINT, price DOUBLE`."""
    sql: str | None = None
    """A query that shapes the rows: `SELECT topic, price FROM events`."""
    transform: str | None = None
    """`module:function` that takes a DataFrame and returns one."""
    losses: str = ""
    """The folder of the table of lost events; `OUT.losses` if not given."""
    quarantine: str = ""
    """The folder of payloads that are not what was declared; `OUT.quarantine` if not given."""
    max_events: int = MAX_EVENTS
    """At most so many events in a batch."""
    table: str = ""
    """With `iceberg`: the table's name in the catalog, `lake.NAME` if not given."""
    catalog: dict[str, str] = field(default_factory=dict)
    """With `iceberg`: the catalog's properties; one in a file beside the table if not given."""

    def __post_init__(self) -> None:
        _check_types(self)
        out = check_folder("out", self.out)
        set_field(self, "out", out)
        set_field(self, "name", self.name or os.path.basename(out))
        if not _NAME.fullmatch(self.name):
            problem = f"{self.name!r} cannot name an output: letters, digits, '.', '_' and '-'"
            raise ConfigError("name", f"{problem}; write name = '...'")
        one_of("format", self.format, FORMATS)
        set_field(self, "payload", check_payload("payload", self.payload))
        if self.payload == "variant" and self.format != "parquet":
            problem = f"variant is not written into {self.format} tables: take json, or columns"
            raise ConfigError("payload", problem)
        topics = several("topics", self.topics, str, "a pattern or a list of patterns")
        set_field(self, "topics", tuple(check_pattern(topic) for topic in topics) or ("**",))
        wanted = "a column or a list of columns"
        set_field(self, "partition_by", several("partition_by", self.partition_by, str, wanted))
        if len(set(self.partition_by)) != len(self.partition_by):
            raise ConfigError("partition_by", "a column stands twice")
        if self.sql is not None and self.transform is not None:
            raise ConfigError("transform", "there is sql already: use one of the two")
        if self.transform is not None and not _FUNCTION.fullmatch(self.transform):
            problem = f"{self.transform!r} is not a function: write 'package.module:function'"
            raise ConfigError("transform", problem)
        for side in ("losses", "quarantine"):
            given = getattr(self, side) or f"{out}.{side}"
            set_field(self, side, check_folder(side, given))
        if type(self.max_events) is not int or self.max_events < 1:
            raise ConfigError("max_events", f"{self.max_events!r} is not a whole number from 1 on")
        set_field(self, "table", self.table or f"lake.{self.name.replace('.', '_')}")

    @property
    def shaped(self) -> bool:
        """Whether rows are not simply the events."""
        return self.sql is not None or self.transform is not None

    @property
    def staging(self) -> str:
        """Where files are made before they are part of the table."""
        parent, name = os.path.split(self.out)
        return f"{parent.rstrip('/')}/.{name}.staging"


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """All that the daemon is made of."""

    outputs: tuple[Output, ...]
    """What is written."""
    state: str = ""
    """The daemon's own folder: log, checkpoints; `OUT.sink` of the first output if not given."""
    source: str | None = None
    """Logs that somebody else writes; then nothing is recorded."""
    trigger: float | str = 1.0
    """The time between two batches."""
    master: str = "local[*]"
    """The Spark that does the work."""
    spark: dict[str, str] = field(default_factory=dict)
    """Settings of Spark."""
    once: bool = False
    """Write what is there, and end."""
    fail_on_loss: bool = False
    """Whether lost events stop the daemon."""
    retention: str | None = "1d"
    """How much is kept in the log once it is in the table: `1d`, `10GB`, both, or `all`."""
    fsync: str = "batch"
    """When recorded events are on the disk."""
    segment_bytes: int | str = "64MiB"
    """The size of the log's files."""
    metrics: str | int | None = None
    """Where figures are shown: `127.0.0.1:9400`, or the port; as the peer's `monitor` says it."""

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ConfigError("out", "say where the table is to be: --out ./lake/quotes")
        if self.metrics is not None:
            set_field(self, "metrics", str(self.metrics))
        _check_types(self)
        outputs = tuple(self.outputs)
        set_field(self, "outputs", outputs)
        folders = [o for one in outputs for o in (one.out, one.losses, one.quarantine)]
        for values, what in (([o.name for o in outputs], "name"), (folders, "out")):
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ConfigError(what, f"{twice[0]!r} stands twice: each output has its own")
        state = self.state or f"{outputs[0].out}.sink"
        set_field(self, "state", check_folder("state", state))
        if self.source is not None:
            set_field(self, "source", check_folder("source", self.source))
        set_field(self, "trigger", parse_time("trigger", self.trigger))
        if not isinstance(self.master, str) or not _MASTER.fullmatch(self.master):
            problem = f"{self.master!r} is no Spark: write 'local[*]' or 'spark://host:7077'"
            raise ConfigError("master", problem)
        for key, value in self.spark.items():
            if key in _MEMORY and not _MEMORY_SIZE.fullmatch(value):
                raise ConfigError("spark", f"{key} = {value!r} is no size for Java: write '4g'")
            if not key.startswith("spark."):
                problem = f"{key!r} is not a setting of Spark: write 'spark.driver.memory' = '4g'"
                raise ConfigError("spark", problem)
        if self.retention == "all":
            set_field(self, "retention", None)
        self.record()
        if self.metrics is not None:
            metrics_address(str(self.metrics))

    @property
    def log(self) -> str:
        """The folder with the logs that are read."""
        return self.source or f"{self.state}/log"

    @property
    def patterns(self) -> tuple[str, ...]:
        """What is recorded: all that an output wants."""
        return tuple(dict.fromkeys(topic for one in self.outputs for topic in one.topics))

    def record(self) -> Record:
        """How it is recorded; raises `ConfigError`."""
        return Record(
            self.patterns,
            fsync=self.fsync,
            retention=self.retention,
            segment_bytes=self.segment_bytes,
            hold=tuple(self.cursor(one) for one in self.outputs),
        )

    def cursor(self, output: Output) -> str:
        """The cursor that holds retention.

        In a log of somebody else it says which table it is for: there may be other sinks on it.
        """
        if self.source is None:
            return f"sink-{output.name}"
        return f"sink-{output.name}-{zlib.crc32(output.out.encode()):08x}"

    def checkpoint(self, output: Output) -> str:
        """The folder of an output's checkpoint."""
        return f"{self.state}/checkpoint/{output.name}"


_KINDS: dict[str, tuple[type, str]] = {
    "str": (str, "text"),
    "str | None": (str, "text"),
    "bool": (bool, "true or false"),
    "dict[str, str]": (dict, "a table of texts"),
}


def _check_types(config: Output | SinkConfig) -> None:
    """A TOML file may hold anything; raises `ConfigError` that names the key."""
    for known in dataclasses.fields(config):
        value = getattr(config, known.name)
        kind, wanted = _KINDS.get(str(known.type), (object, ""))
        folder = isinstance(value, Path)
        absent = value is None and str(known.type).endswith("None")
        if not (isinstance(value, kind) or folder or absent):
            raise ConfigError(known.name, f"{value!r} is not {wanted}")
        if kind is dict and not all(isinstance(x, str) for pair in value.items() for x in pair):
            raise ConfigError(known.name, f"{value!r} is not {wanted}: write 'key' = 'value'")


def check_folder(name: str, path: object) -> str:
    """A folder on this machine, as a full path; raises `ConfigError`."""
    if not isinstance(path, str | Path) or not str(path):
        raise ConfigError(name, f"{path!r} is not a folder: write './lake/quotes'")
    text = str(path)
    found = _URI.match(text)  # a Path has made one slash of several
    if found is None:
        return os.path.abspath(text)
    if found[1].lower() != "file":
        problem = (
            f"{text!r}: tables are written into a folder that this machine and Spark's executors "
            f"see (a disk, NFS, a mounted bucket), not to {found[1]}"
        )
        raise ConfigError(name, problem)
    return path_of_file_uri(name, text)


def metrics_address(text: str) -> str:
    """Host and port, of which the host may be left out; raises `ConfigError`."""
    host, _, port = str(text).rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise ConfigError("metrics", f"{text!r} is not a port or HOST:PORT: write 9400")
    return f"{host or '127.0.0.1'}:{port}"


def load_sink(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]], PeerConfig | None]:
    """The tables of a `sink.toml`: `[sink]`, each `[[output]]`, and the peer of `[peer]`.

    Raises `ConfigError` that names the file, the table and the key.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from None
    try:
        return _tables(tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.field}", error.problem) from None


def _tables(
    tables: Mapping[str, Any],
) -> tuple[dict[str, Any], list[dict[str, Any]], PeerConfig | None]:
    rest = {key: value for key, value in tables.items() if key not in ("sink", "output")}
    sink, outputs = tables.get("sink", {}), tables.get("output", [])
    if not isinstance(sink, dict):
        raise ConfigError("sink", "write [sink]")
    if not isinstance(outputs, list) or not outputs:
        raise ConfigError("output", "write [[output]], with two brackets, once for each table")
    _only(sink, SinkConfig, "sink.", apart=("outputs", "once"))
    for number, output in enumerate(outputs):
        _only(output, Output, f"output[{number}].")
    return sink, outputs, config_from_tables(rest) if rest else None


def _only(table: Mapping[str, Any], kind: type, where: str, apart: tuple[str, ...] = ()) -> None:
    known = [f.name for f in dataclasses.fields(kind) if f.name not in apart]
    for key in table:
        try:
            one_of(where + key, key, known)
        except ConfigError as error:
            raise ConfigError(where + key, f"is not a key here: {error.problem}") from None


def make_sink(sink: Mapping[str, Any], outputs: list[Mapping[str, Any]]) -> SinkConfig:
    """From plain values; raises `ConfigError`."""
    made = []
    for number, values in enumerate(outputs):
        if "out" not in values:
            raise ConfigError(f"output[{number}].out", "is missing: the folder of the table")
        made.append(Output(**values))
    return SinkConfig(outputs=tuple(made), **sink)
