"""Every module of the cores and shells has a test file of its own, where the module lies."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = Path(__file__).resolve().parent
#: Rooms whose modules each have a file here.
COMPLETE = (
    "meshmsg/_access",
    "meshmsg/_bridge",
    "meshmsg/_groups",
    "meshmsg/_links",
    "meshmsg/_model",
    "meshmsg/_native.py",
    "meshmsg/_overview",
    "meshmsg/_peer",
    "meshmsg/_platform",
    "meshmsg/_publish",
    "meshmsg/_receive",
    "meshmsg/_replay",
    "meshmsg/_runtime",
    "meshmsg/_wire",
    "meshmsg/keys",
    "meshmsg/logs",
    "meshmsg/moldudp",
    "meshmsg/monitor",
    "meshmsg/nanomsg",
    "meshmsg/otel",
    "meshmsg/statsd",
    "meshmsg/testing",
    "meshmsg/webhooks",
    "recovery",
    "spark_sink",
    "transports",
)
#: Rooms that are tried as people use them, and where.
BY_VERB = {"meshmsg/cli": "tests/cli", "meshmsg/doctor": "tests/cli/test_doctor.py"}
#: Names that lead elsewhere and a type that is another module's class; and the doors of the edges,
#: which tests/scenarios/ tries with peers and servers at the other end.
WITHOUT = {
    *("meshmsg/_wire/open_frame.py", "recovery/log_writer.py", "transports/itch.py"),
    "spark_sink/sink_process.py",
    *(f"meshmsg/{edge}/__init__.py" for edge in ("moldudp", "nanomsg", "statsd", "webhooks")),
}


def modules(room: str) -> list[Path]:
    """Modules of a room or a file of its own; of an `__init__`, one that has code."""
    paths = [ROOT / room] if room.endswith(".py") else sorted((ROOT / room).rglob("*.py"))
    wanted = [path for path in paths if path.name != "__init__.py" or has_code(path)]
    return [path.relative_to(ROOT) for path in wanted]


def has_code(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return any(isinstance(one, ast.FunctionDef | ast.ClassDef) for one in body)


def file_of(module: Path) -> Path:
    return UNIT / module.parent / f"test_{module.stem.strip('_')}.py"


def test_every_module_of_a_complete_room_has_its_file() -> None:
    found = [module for room in COMPLETE for module in modules(room)]
    assert len(found) > 100
    missing = {str(module) for module in found if not file_of(module).exists()}
    assert missing == WITHOUT


def test_every_room_is_complete_or_tried_by_its_verbs() -> None:
    links = {"recovery", "spark_sink", "transports"}
    packages = {path.parent.name for path in (ROOT / "meshmsg").glob("*/__init__.py")}
    rooms = {f"meshmsg/{name}" for name in packages - links} | links
    assert {room for room in COMPLETE if not room.endswith(".py")} | set(BY_VERB) == rooms
    assert all((ROOT / path).exists() for path in BY_VERB.values())


def test_every_file_lies_in_a_folder_of_the_product() -> None:
    folders = {path.parent.relative_to(UNIT) for path in UNIT.rglob("test_*.py")}
    folders -= {Path(), Path("support")}
    assert [str(folder) for folder in sorted(folders) if not (ROOT / folder).is_dir()] == []
