"""The rooms of the repository: what import-linter's contracts in pyproject.toml do not hold.

`make lint` runs the contracts. Here: that they see every room, that what they ignore may only fall,
and so may import cycles and private attributes touched from outside (tests/rooms.toml).

The last tests pin the public names of `meshmsg`: a name enters or leaves on purpose only.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests import rooms
from tests.rooms import LINKED, ROOT

EXPECTED = (
    "AsyncPeer",
    "AsyncPeerWatch",
    "AsyncSubscription",
    "Batch",
    "BindError",
    "COMPILED",
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
    "JsonLogFormatter",
    "Ledger",
    "LedgerRow",
    "LogError",
    "LogFull",
    "LogLocked",
    "Loss",
    "MeshError",
    "Monitor",
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
    "StartFrom",
    "Stream",
    "Subscription",
    "TopicError",
    "Tuning",
    "WaitTimeout",
    "__version__",
    "parse_time",
)

TOP = {"__init__.py", "__main__.py", "_native.py", "_speed.pyi", "py.typed"}
"""Files of `meshmsg/` itself: everything else is in a room."""

USERS = ("cli", "moldudp", "nanomsg", "spark_sink", "statsd", "testing", "webhooks")
"""Rooms that may use the public names, as any program does."""

PROGRAMS = ("benchmarks", "examples", "market", "tests")
"""What runs meshmsg and is not installed; `market` is the package of the demo."""

PUBLIC = (
    "meshmsg",
    "meshmsg.doctor",
    "meshmsg.keys",
    "meshmsg.logs",
    "meshmsg.moldudp",
    "meshmsg.moldudp.itch",
    "meshmsg.nanomsg",
    "meshmsg.otel",
    "meshmsg.spark_sink",
    "meshmsg.spark_sink.sink",
    "meshmsg.statsd",
    "meshmsg.testing",
    "meshmsg.webhooks",
)
"""Modules whose names programs may use: those in their `__all__`, where they have one."""

VIEW = "meshmsg._overview"
"""The whole mesh, for terminals and pages: verbs show it, and no program has it yet."""

DOCUMENTED = {
    "meshmsg.recovery.log_writer": ("meshmsg.recovery.log.writer", "LogWriter"),
    "meshmsg.spark_sink.sink_process": ("meshmsg.spark_sink.sink.process", "SinkProcess"),
    "meshmsg.transports.itch": ("meshmsg.moldudp.itch", "decode_message"),
}
"""Modules that the documentation named before they moved, and one name of each."""


def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def folders() -> set[str]:
    return {path.name for path in (ROOT / "meshmsg").iterdir() if (path / "__init__.py").exists()}


# Places ----------------------------------------------------------------------------------------


def test_the_path_says_the_room() -> None:
    files = {path.name for path in (ROOT / "meshmsg").iterdir() if path.is_file()}
    assert {name for name in files if not name.endswith(".so")} == TOP


@pytest.mark.parametrize("room", LINKED)
def test_link_is_relative_and_leads_to_its_room(room: str) -> None:
    assert (ROOT / "meshmsg" / room).readlink() == Path("..", room)


def test_every_package_is_listed_for_the_build() -> None:
    """A package left out of pyproject.toml works in a checkout and is missing from the wheel."""
    packages = {rooms.module_of(path) for path in rooms.paths() if path.endswith("/__init__.py")}
    assert packages == set(rooms.settings()["tool"]["setuptools"]["packages"])


def test_every_folder_with_code_is_a_package() -> None:
    parents = {Path(path).parent for path in rooms.paths()}
    assert [str(one) for one in sorted(parents) if not (ROOT / one / "__init__.py").exists()] == []


@pytest.mark.parametrize("old", DOCUMENTED)
def test_documented_modules_are_found_where_they_were(old: str) -> None:
    new, name = DOCUMENTED[old]
    found = getattr(importlib.import_module(old), name)
    assert found is getattr(importlib.import_module(new), name)


# Contracts -------------------------------------------------------------------------------------


def test_contracts_see_the_linked_rooms_and_imports_for_types() -> None:
    graph = grimp.build_graph("meshmsg", exclude_type_checking_imports=False, cache_dir=None)
    ours = {rooms.module_of(path) for path in rooms.paths("meshmsg", *LINKED)}
    assert ours <= graph.modules
    options = rooms.settings()["tool"]["importlinter"]
    assert options["exclude_type_checking_imports"] is False
    assert options["include_external_packages"] is True


@pytest.mark.parametrize(
    ("library", "users"),
    [
        ("aiohttp", {"webhooks"}),
        ("numpy", {"spark_sink", "statsd"}),
        ("opentelemetry", {"otel"}),
        ("prometheus_client", {"monitor"}),
        ("pynng", {"nanomsg"}),
        ("pyspark", {"spark_sink"}),
        ("socket", {"moldudp", "monitor", "statsd", "transports", "webhooks"}),
        ("zmq", {"transports"}),
    ],
)
def test_a_library_is_forbidden_to_all_other_rooms(library: str, users: set[str]) -> None:
    contracts = rooms.settings()["tool"]["importlinter"]["contracts"]
    [found] = [
        contract
        for contract in contracts
        if contract["name"].startswith("Only ") and library in contract["forbidden_modules"]
    ]
    assert set(found["source_modules"]) == {f"meshmsg.{room}" for room in folders() - users}


def test_ignored_imports_only_fall() -> None:
    found = rooms.exceptions()
    assert found.total() <= rooms.allowed()["ignored_imports"], found


def test_import_cycles_only_shrink() -> None:
    knots = rooms.cycles()
    assert max(map(len, knots), default=0) <= rooms.allowed()["largest_cycle"], knots[0]
    assert sum(map(len, knots)) <= rooms.allowed()["modules_in_cycles"], knots


def test_private_attributes_of_other_modules_are_touched_ever_less() -> None:
    allowed = rooms.allowed()["private"]
    worse = []
    for path in rooms.paths():
        module = rooms.module_of(path)
        found = list(rooms.touched(source(path)))
        if len(found) > allowed.get(module, 0):
            worse += [f"{path}:{line}: {name}" for line, name in found]
    assert not worse, "\n".join(worse)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("peer._node.close()", ["peer._node"]),
        ("self._side._post(1)", ["self._side._post"]),
        ("from meshmsg._wire.frame import _known", ["meshmsg._wire.frame._known"]),
        ("class A:\n    def f(self, other):\n        self._n = other._n", []),
        ("class A:\n    __slots__ = ('_n',)\ndef f(a): return a._n", []),
        ("row._replace(n=1); os._exit(1); x.__dict__", []),
        ("from meshmsg import _speed", []),
        ("getattr(peer, '_node')", ["getattr(peer, '_node')"]),
        ("NAME = '_node'\npeer._node", ["peer._node"]),
    ],
)
def test_private_attributes_of_others_are_found(text: str, found: list[str]) -> None:
    assert [name for _, name in rooms.touched(text)] == found


# Imports ---------------------------------------------------------------------------------------


def imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_rooms_below_the_peer_do_not_use_the_public_names() -> None:
    """Contracts do not follow the package itself: what imports it could reach everything."""
    public = {f"meshmsg.{name}" for name in EXPECTED}
    found = [
        (path, name)
        for path in rooms.paths("meshmsg", "recovery", "transports")
        if path.count("/") > 1 or not path.startswith("meshmsg/")
        if path.split("/")[1] not in USERS
        for name in imported(source(path))
        if name == "meshmsg" or name in public
    ]
    assert found == []


def test_examples_and_rooms_use_full_names_and_no_sockets_of_their_own() -> None:
    found = [
        (path, name)
        for path in rooms.paths("examples", "meshmsg", *LINKED)
        for name in imported(source(path))
        if name.partition(".")[0] in LINKED
        or (path.startswith("examples/") and name.partition(".")[0] in ("zmq", "pyspark"))
    ]
    assert found == []


def test_no_room_imports_a_program() -> None:
    found = [
        (path, name)
        for path in rooms.paths()
        for name in imported(source(path))
        if name.partition(".")[0] in PROGRAMS
    ]
    assert found == []


def test_the_command_and_the_examples_use_public_names_only() -> None:
    found = [
        (path, name)
        for path in rooms.paths("examples", "meshmsg/cli")
        for name in imported(source(path))
        if name.partition(".")[0] == "meshmsg" and not name.startswith(("meshmsg.cli", VIEW))
        if not is_public(name)
    ]
    assert found == []


def is_public(name: str) -> bool:
    home, _, own = name.rpartition(".")
    if name in PUBLIC or home not in PUBLIC:
        return name in PUBLIC
    names = getattr(importlib.import_module(home), "__all__", None)
    return own in names if names else not own.startswith("_")


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("meshmsg.Peer", True),
        ("meshmsg.logs", True),
        ("meshmsg.logs.LogReader", True),
        ("meshmsg.logs.CURSOR_PREFIX", False),
        ("meshmsg._peer.peer.Peer", False),
        ("meshmsg.recovery.log.reader.LogReader", False),
        ("meshmsg.statsd.report.word", False),
    ],
)
def test_what_is_public_is_known(name: str, public: bool) -> None:
    assert is_public(name) == public


def test_randomness_is_passed_in() -> None:
    """Cores may name the type `random.Random`; the generator itself is passed in, seeded."""
    found = []
    for path in rooms.paths("meshmsg/_model", "meshmsg/_wire", "recovery"):
        found += [f"{path}:{line}: {use}" for line, use in uses_of_random(source(path))]
    assert not found, "\n".join(found)


def uses_of_random(text: str) -> Iterator[tuple[int, str]]:
    """Where the module's own generator is drawn from, or another one is made."""
    nodes = list(ast.walk(ast.parse(text)))
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = {alias.asname or alias.name: alias.name for node in imports for alias in node.names}
    for node in nodes:
        match node:
            case ast.ImportFrom(module="random") if {one.name for one in node.names} != {"Random"}:
                forbidden = True
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


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("from random import uniform", [1]),
        ("import random\nx = random.random()", [2]),
        ("import random as r\nx = r.uniform(0, 1)", [2]),
        ("import random\nx = random.Random()", [2]),
        ("from random import Random\nx = Random(7)", [2]),
        ("import random\ndef f(rng: random.Random) -> float: return rng.random()", []),
        ("from random import Random", []),
    ],
)
def test_randomness_of_its_own_is_found(text: str, lines: list[int]) -> None:
    assert [line for line, _ in uses_of_random(text)] == lines


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
