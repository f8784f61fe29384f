"""The rooms of the repository, and the door between each two of them, held by tests.

Imports run one way: ground <- recovery <- transports <- roof <- spark_sink <- examples. The files
are parsed and never imported, so a forbidden import is found even where it would fail to load or
sits inside a function. Imports under `if TYPE_CHECKING:` never run and are not counted.

The last tests pin the public names of `meshmsg`: a name enters or leaves on purpose only.
"""

from __future__ import annotations

import ast
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

EXPECTED = (
    "AsyncPeer",
    "AsyncPeerWatch",
    "AsyncSubscription",
    "Batch",
    "BindError",
    "ClosedError",
    "Codec",
    "ConfigError",
    "Discovery",
    "Event",
    "EventTooLarge",
    "EventsLost",
    "Feed",
    "ForkedError",
    "JsonCodec",
    "Ledger",
    "LedgerRow",
    "LogError",
    "LogFull",
    "LogLocked",
    "Loss",
    "MeshError",
    "MsgpackCodec",
    "Multicast",
    "NameInUse",
    "NoStream",
    "PayloadError",
    "Peer",
    "PeerChange",
    "PeerConfig",
    "PeerInfo",
    "PeerRefused",
    "PeerWatch",
    "Position",
    "ProtocolError",
    "PublishTimeout",
    "Record",
    "ReplayError",
    "Security",
    "Stream",
    "Subscription",
    "TopicError",
    "Tuning",
    "WaitTimeout",
    "__version__",
)

GROUND = (
    "meshmsg/_batch.py",
    "meshmsg/_codecs.py",
    "meshmsg/_compiled.py",
    "meshmsg/_config.py",
    "meshmsg/_control.py",
    "meshmsg/_discovery.py",
    "meshmsg/_errors.py",
    "meshmsg/_event.py",
    "meshmsg/_extras.py",
    "meshmsg/_frame.py",
    "meshmsg/_frame_builder.py",
    "meshmsg/_frame_columns.py",
    "meshmsg/_frame_encoder.py",
    "meshmsg/_frame_layout.py",
    "meshmsg/_heartbeat.py",
    "meshmsg/_log_words.py",
    "meshmsg/_mcast_words.py",
    "meshmsg/_message_fields.py",
    "meshmsg/_msgpack.py",
    "meshmsg/_multicast.py",
    "meshmsg/_open_frame.py",
    "meshmsg/_packet.py",
    "meshmsg/_security.py",
    "meshmsg/_sp_messages.py",
    "meshmsg/_statsd_lines.py",
    "meshmsg/_statsd_report.py",
    "meshmsg/_subframe.py",
    "meshmsg/_tail_frame.py",
    "meshmsg/_topics.py",
    "meshmsg/_values.py",
    "meshmsg/_webhook_urls.py",
)
"""The pure modules of `meshmsg/`. Every other file of that folder is roof."""

COMPILED = ("meshmsg/_speed.py",)
"""Ground too, and no file: compiled from `meshmsg/c/`, with a stub where the file would be."""

ORDER = ("ground", "recovery", "transports", "roof", "spark_sink", "examples")
"""From the bottom up: a room imports itself and the rooms before it."""

LINKED = ("recovery", "spark_sink", "transports")
"""Folders at the top of the repository that import as `meshmsg.<name>`, through a link."""

FINDER = "pyspark_meshmsg"
"""A package that does nothing but let Spark find `spark_sink` by its name: of the same room."""

# fmt: off
IMPURE = frozenset({
    "_thread", "asyncio", "concurrent", "fcntl", "http", "logging", "mmap", "multiprocessing",
    "os", "pathlib", "pyspark", "queue", "sched", "secrets", "select", "selectors", "shutil",
    "signal", "socket", "socketserver", "ssl", "subprocess", "tempfile", "threading", "time",
    "tomllib", "urllib", "zmq",
})
# fmt: on
"""Modules that wait, look at the clock, or reach out of the process."""

IMPURE_ALLOWED: dict[str, frozenset[str]] = {
    "meshmsg/_compiled.py": frozenset({"os"}),
    "meshmsg/_config.py": frozenset({"pathlib", "tomllib"}),
    "meshmsg/_security.py": frozenset({"os", "pathlib"}),
    "recovery/log_appender.py": frozenset({"logging", "threading"}),
    "recovery/log_commit.py": frozenset({"threading"}),
    "recovery/log_files.py": frozenset({"fcntl", "mmap", "os"}),
    "recovery/log_holds.py": frozenset({"logging", "threading"}),
    "recovery/log_writer.py": frozenset({"logging", "threading", "time"}),
}
"""Ground and recovery files that may use some of `IMPURE`. The durable log is the only part of
recovery that the design lets touch disk: nothing else of that room belongs here."""

ZMQ_ALLOWED: frozenset[str] = frozenset()
"""Roof files that may import zmq. Sockets live in transports/, so a name here needs a reason."""

TYPE_CHECKING_TESTS = ("TYPE_CHECKING", "typing.TYPE_CHECKING")

ROOT = Path(__file__).resolve().parent.parent


# The checker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """One file: its path from the repository's top, with slashes, and its text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, in full: `from os import path` is `os.path`."""

    name: str
    line: int

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Violation:
    path: str
    line: int
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.detail} [{self.rule}]"


Check = Callable[[Source], Iterator[Violation]]


def room_of_path(path: str) -> str:
    folder = path.partition("/")[0]
    if folder == FINDER:
        return "spark_sink"
    if folder != "meshmsg":
        return folder
    return "ground" if path in GROUND + COMPILED else "roof"


def room_of_name(name: str) -> str | None:
    """The room that an imported name lives in, or None where it is not ours."""
    top, _, rest = name.partition(".")
    if top == "examples":
        return top
    if top != "meshmsg":
        return None
    below = rest.partition(".")[0]
    return below if below in LINKED else room_of_path(f"meshmsg/{below}.py")


def package_of(path: str) -> list[str]:
    """The package that relative imports in this file start from."""
    folders = path.split("/")[:-1]
    return ["meshmsg", *folders] if folders[0] in LINKED else folders


def imports_of(source: Source) -> Iterator[Import]:
    package = package_of(source.path)
    for node in nodes_that_run(ast.parse(source.text, source.path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, alias.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = node.module.split(".") if node.module else []
            for alias in node.names:
                yield Import(".".join([*base, *module, alias.name]), alias.lineno)


def nodes_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """Every node in the order of the text, without the bodies of `if TYPE_CHECKING:`."""
    yield node
    if isinstance(node, ast.If) and ast.unparse(node.test) in TYPE_CHECKING_TESTS:
        children: Iterable[ast.AST] = node.orelse
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from nodes_that_run(child)


def check_purity(source: Source) -> Iterator[Violation]:
    room = room_of_path(source.path)
    if room not in ("ground", "recovery"):
        return
    forbidden = IMPURE - IMPURE_ALLOWED.get(source.path, frozenset())
    for found in imports_of(source):
        if found.top in forbidden:
            detail = f"{room} does no I/O, and this imports {found.name}"
            yield Violation(source.path, found.line, "purity", detail)


def check_randomness(source: Source) -> Iterator[Violation]:
    """Recovery may name the type `random.Random`; the generator itself is passed in, seeded."""
    room = room_of_path(source.path)
    if room not in ("ground", "recovery"):
        return
    for found in imports_of(source):
        if found.top == "random" and room == "ground":
            yield Violation(source.path, found.line, "randomness", "ground draws no random numbers")
        elif found.top == "random" and found.name not in ("random", "random.Random"):
            detail = f"recovery takes the type Random only, and this imports {found.name}"
            yield Violation(source.path, found.line, "randomness", detail)
    for line, use in uses_of_random(source):
        detail = f"randomness is passed in as a random.Random, and this has its own: {use}"
        yield Violation(source.path, line, "randomness", detail)


def uses_of_random(source: Source) -> Iterator[tuple[int, str]]:
    """Where the module's own generator is drawn from, or another one is made."""
    nodes = list(nodes_that_run(ast.parse(source.text, source.path)))
    imported = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = {alias.asname or alias.name: alias.name for node in imported for alias in node.names}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if attr != "Random":
                forbidden = bound.get(name) == "random"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="Random")):
                forbidden = bound.get(name) == "random"
            case ast.Call(func=ast.Name(id=name)):
                forbidden = bound.get(name) == "Random"
            case _:
                continue
        if forbidden:
            yield node.lineno, ast.unparse(node)


def check_direction(source: Source) -> Iterator[Violation]:
    room = room_of_path(source.path)
    for found in imports_of(source):
        target = room_of_name(found.name)
        if target is not None and ORDER.index(target) > ORDER.index(room):
            detail = f"{room} stands below {target}, and this imports {found.name}"
            yield Violation(source.path, found.line, "one way", detail)


def check_pyspark(source: Source) -> Iterator[Violation]:
    if room_of_path(source.path) == "spark_sink":
        return
    for found in imports_of(source):
        if found.top == "pyspark":
            detail = f"only spark_sink/ imports pyspark, and this imports {found.name}"
            yield Violation(source.path, found.line, "pyspark", detail)


def check_zmq(source: Source) -> Iterator[Violation]:
    if room_of_path(source.path) == "transports" or source.path in ZMQ_ALLOWED:
        return
    for found in imports_of(source):
        if found.top == "zmq":
            detail = f"sockets are opened in transports/ only, and this imports {found.name}"
            yield Violation(source.path, found.line, "zmq", detail)


def check_bare_names(source: Source) -> Iterator[Violation]:
    for found in imports_of(source):
        if found.top in LINKED:
            detail = f"{found.name} exists in a checkout only: write meshmsg.{found.name}"
            yield Violation(source.path, found.line, "bare name", detail)


# The repository --------------------------------------------------------------------------------


def sources() -> list[Source]:
    """Every file of every room, once: os.walk stays out of the links."""
    paths = []
    for folder in ("meshmsg", *LINKED, FINDER, "examples"):
        for parent, _, names in os.walk(ROOT / folder):
            paths += [Path(parent, name) for name in names if name.endswith(".py")]
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(paths)
    ]


def hold(check: Check) -> None:
    """Fail with one line for each place that breaks the rule."""
    found = [str(violation) for source in sources() for violation in check(source)]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def stale(listed: set[str], present: set[str]) -> list[str]:
    """Listed names without a file. Before the first file is there, nothing can be stale."""
    return sorted(listed - present) if listed & present else []


def test_ground_and_recovery_do_no_io() -> None:
    hold(check_purity)


def test_randomness_is_passed_in() -> None:
    hold(check_randomness)


def test_imports_run_one_way() -> None:
    hold(check_direction)


def test_only_spark_sink_imports_pyspark() -> None:
    hold(check_pyspark)


def test_only_transports_import_zmq() -> None:
    hold(check_zmq)


def test_linked_rooms_are_imported_by_their_full_name() -> None:
    hold(check_bare_names)


def test_lists_name_files_that_exist() -> None:
    present = {source.path for source in sources()}
    missing = stale(set(GROUND), present)
    missing += [path for path in COMPILED if not (ROOT / f"{path}i").exists()]
    missing += sorted((set(IMPURE_ALLOWED) | ZMQ_ALLOWED) - set(GROUND) - present)
    assert not missing, f"named in tests/test_rooms.py but not there: {', '.join(missing)}"


def test_every_linked_room_is_checked_once() -> None:
    paths = [source.path for source in sources()]
    for room in LINKED:
        assert paths.count(f"{room}/__init__.py") == 1
        assert f"meshmsg/{room}/__init__.py" not in paths


@pytest.mark.parametrize("room", LINKED)
def test_link_is_relative_and_leads_to_its_room(room: str) -> None:
    assert (ROOT / "meshmsg" / room).readlink() == Path("..", room)


def test_every_package_is_listed_for_the_build() -> None:
    """A package left out of pyproject.toml works in a checkout and is missing from the wheel."""
    inits = [source.path for source in sources() if source.path.endswith("/__init__.py")]
    packages = {".".join(package_of(path)) for path in inits if not path.startswith("examples/")}
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert packages == set(settings["tool"]["setuptools"]["packages"])


# The checker, checked --------------------------------------------------------------------------

BAD = [
    (check_purity, "meshmsg/_frame.py", 1, "import time"),
    (check_purity, "meshmsg/_frame.py", 1, "import os.path"),
    (check_purity, "meshmsg/_event.py", 1, "from pathlib import Path"),
    (check_purity, "meshmsg/_config.py", 1, "import pathlib, socket"),
    (check_purity, "recovery/gaps.py", 1, "from threading import Lock"),
    (check_purity, "recovery/gaps.py", 1, "import logging as log"),
    (check_purity, "recovery/deep/gaps.py", 2, "def f():\n    import asyncio"),
    (check_purity, "recovery/gaps.py", 2, "try:\n    import zmq\nexcept ImportError:\n    pass"),
    (check_purity, "recovery/gaps.py", 2, "if not TYPE_CHECKING:\n    import time"),
    (check_purity, "recovery/gaps.py", 4, "if TYPE_CHECKING:\n    pass\nelse:\n    import time"),
    (check_randomness, "meshmsg/_frame.py", 1, "import random"),
    (check_randomness, "meshmsg/_frame.py", 1, "from random import Random"),
    (check_randomness, "recovery/gaps.py", 1, "from random import uniform"),
    (check_randomness, "recovery/gaps.py", 2, "import random\nx = random.random()"),
    (check_randomness, "recovery/gaps.py", 2, "import random as r\nx = r.uniform(0, 1)"),
    (check_randomness, "recovery/gaps.py", 2, "import random\nx = random.Random()"),
    (check_randomness, "recovery/gaps.py", 2, "from random import Random\nx = Random(7)"),
    (check_direction, "meshmsg/_frame.py", 1, "import meshmsg.recovery"),
    (check_direction, "meshmsg/_frame.py", 1, "from .recovery.ranges import Ranges"),
    (check_direction, "meshmsg/_frame.py", 1, "from meshmsg import Event"),
    (check_direction, "meshmsg/_frame.py", 1, "from . import cli"),
    (check_direction, "recovery/gaps.py", 1, "from meshmsg.transports import memory"),
    (check_direction, "recovery/gaps.py", 1, "from .. import transports"),
    (check_direction, "recovery/__init__.py", 1, "from ..transports import memory"),
    (check_direction, "transports/memory.py", 2, "def f():\n    from meshmsg._peer import Peer"),
    (check_direction, "transports/memory.py", 1, "import meshmsg"),
    (check_direction, "meshmsg/cli/sink.py", 1, "from ..spark_sink import source"),
    (check_direction, "meshmsg/__init__.py", 1, "from meshmsg.spark_sink import source"),
    (check_direction, "spark_sink/source.py", 1, "from examples import hello"),
    (check_pyspark, "meshmsg/_peer.py", 1, "from pyspark.sql import SparkSession"),
    (check_pyspark, "transports/memory.py", 2, "def f():\n    import pyspark"),
    (check_pyspark, "examples/spark.py", 1, "import pyspark.sql as sql"),
    (check_zmq, "meshmsg/_peer.py", 1, "import zmq"),
    (check_zmq, "meshmsg/cli/top.py", 1, "from zmq.asyncio import Context"),
    (check_zmq, "spark_sink/source.py", 1, "import zmq"),
    (check_zmq, "examples/hello.py", 1, "import zmq"),
    (check_bare_names, "meshmsg/_peer.py", 1, "import transports"),
    (check_bare_names, "meshmsg/_peer.py", 1, "from recovery.ranges import Ranges"),
    (check_bare_names, "recovery/gaps.py", 1, "from recovery import ranges"),
    (check_bare_names, "examples/hello.py", 2, "def f():\n    import spark_sink.source"),
]


GOOD = [
    (
        "meshmsg/_config.py",
        "import tomllib\nfrom pathlib import Path\nfrom ._errors import MeshError",
    ),
    ("meshmsg/_frame.py", "import struct\nimport crc32c\nfrom meshmsg import _errors, _event"),
    ("meshmsg/_frame.py", "if TYPE_CHECKING:\n    from meshmsg.transports import memory"),
    ("meshmsg/_frame.py", "import typing\nif typing.TYPE_CHECKING:\n    import time"),
    ("recovery/gaps.py", "import random\ndef f(rng: random.Random) -> float: return rng.random()"),
    ("recovery/gaps.py", "from random import Random\nfrom .ranges import Ranges"),
    ("recovery/gaps.py", "from .._frame import Frame\nfrom meshmsg._event import Event"),
    ("recovery/__init__.py", "from . import ranges\nfrom .. import _frame"),
    ("transports/fanout.py", "import zmq, time\nfrom meshmsg.recovery import ranges"),
    ("meshmsg/_peer.py", "import threading\nfrom . import recovery, transports, _frame"),
    ("meshmsg/cli/__init__.py", "from .. import Peer\nfrom ..transports import memory"),
    ("spark_sink/source.py", "import pyspark\nimport meshmsg\nfrom ..recovery import ranges"),
    ("examples/hello.py", "import meshmsg\nimport meshmsg.spark_sink"),
]

CHECKS = (
    check_bare_names,
    check_direction,
    check_purity,
    check_pyspark,
    check_randomness,
    check_zmq,
)


@pytest.mark.parametrize(("check", "path", "line", "text"), BAD)
def test_checker_complains_and_says_where(check: Check, path: str, line: int, text: str) -> None:
    found = [str(violation) for violation in check(Source(path, text))]
    assert len(found) == 1
    assert found[0].startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(("path", "text"), GOOD)
def test_checker_lets_the_allowed_pass(path: str, text: str) -> None:
    assert [str(found) for check in CHECKS for found in check(Source(path, text))] == []


def test_each_check_is_itself_checked() -> None:
    assert {check for check, *_ in BAD} == set(CHECKS)


def test_a_missing_file_is_stale_once_its_neighbours_are_there() -> None:
    assert stale({"a.py", "b.py"}, {"a.py", "c.py"}) == ["b.py"]
    assert stale({"a.py", "b.py"}, {"a.py", "b.py"}) == []
    assert stale({"a.py", "b.py"}, {"c.py"}) == []


# The public names ------------------------------------------------------------------------------


def test_public_names_are_sorted() -> None:
    import meshmsg

    assert sorted(meshmsg.__all__) == list(meshmsg.__all__)


def test_public_names_are_pinned() -> None:
    import meshmsg

    assert tuple(meshmsg.__all__) == EXPECTED


def test_public_names_are_there() -> None:
    import meshmsg

    assert [name for name in meshmsg.__all__ if not hasattr(meshmsg, name)] == []
