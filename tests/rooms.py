"""Counts that may only fall: private attributes touched from outside, import cycles, exceptions.

`tests/rooms.toml` has the allowances. `python -m tests.rooms` lowers them to what is counted now.
"""

from __future__ import annotations

import ast
import os
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grimp

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "tests" / "rooms.toml"
LINKED = ("recovery", "spark_sink", "transports")
"""Folders at the top of the repository that import as `meshmsg.<name>`, through a link."""
FINDER = "pyspark_meshmsg"
"""A package that does nothing but let Spark find `spark_sink` by its name."""
TUPLES = frozenset({"_asdict", "_fields", "_make", "_replace"})
"""Public names of every named tuple."""
SYSTEM = frozenset({"os", "sys"})


def paths(*folders: str) -> list[str]:
    """Every source file below these folders, once, from the top: os.walk stays out of the links."""
    found = []
    for folder in folders or ("meshmsg", *LINKED, FINDER):
        for parent, _, names in os.walk(ROOT / folder):
            found += [Path(parent, name) for name in names if name.endswith(".py")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def module_of(path: str) -> str:
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(["meshmsg", *parts] if parts[0] in LINKED else parts)


def touched(text: str) -> Iterator[tuple[int, str]]:
    """Where a file touches a private name that it does not define itself."""
    nodes = list(ast.walk(ast.parse(text)))
    own = set(defined(nodes)) | TUPLES
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in SYSTEM:
                pass
            case ast.Attribute(attr=attr) if is_private(attr) and attr not in own:
                yield node.lineno, ast.unparse(node)
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"),
                args=[owner, ast.Constant(value=str(attr)), *_],
            ) if is_private(attr) and attr not in own and ast.unparse(owner) not in SYSTEM:
                yield node.lineno, ast.unparse(node)
            case ast.ImportFrom(module=str(module)) if module.startswith("meshmsg."):
                for alias in node.names:
                    if is_private(alias.name):
                        yield node.lineno, f"{module}.{alias.name}"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(nodes: list[ast.AST]) -> Iterator[str]:
    """Names that a file gives to something, the fields of its classes and their slots included."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
                names = (one.value for one in ast.walk(value) if isinstance(one, ast.Constant))
                yield from (name for name in names if isinstance(name, str))


def private_counts() -> dict[str, int]:
    counts = {path: sum(1 for _ in touched((ROOT / path).read_text("utf-8"))) for path in paths()}
    return {module_of(path): count for path, count in counts.items() if count}


def cycles() -> list[list[str]]:
    """Modules that import each other, imports for types included, the largest knot first.

    The package itself is left out: it has the public names, each loaded with its first use.
    """
    graph = grimp.build_graph("meshmsg", exclude_type_checking_imports=False, cache_dir=None)
    for module in graph.find_modules_directly_imported_by("meshmsg"):
        graph.remove_import(importer="meshmsg", imported=module)
    reach = {module: graph.find_downstream_modules(module) for module in graph.modules}
    knots = {
        frozenset({module, *(other for other in reach[module] if module in reach[other])})
        for module in reach
    }
    return sorted((sorted(knot) for knot in knots if len(knot) > 1), key=lambda knot: -len(knot))


def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def exceptions() -> Counter[str]:
    """How many imports each contract of import-linter ignores, but for those of the package."""
    contracts = settings()["tool"]["importlinter"]["contracts"]
    return Counter(
        {
            contract["name"]: sum("**" not in one for one in contract.get("ignore_imports", ()))
            for contract in contracts
        }
    )


def allowed() -> dict[str, Any]:
    return tomllib.loads(ALLOWED.read_text(encoding="utf-8"))


def counted() -> dict[str, Any]:
    knots = cycles()
    return {
        "ignored_imports": exceptions().total(),
        "largest_cycle": max(map(len, knots), default=0),
        "modules_in_cycles": sum(map(len, knots)),
        "private": private_counts(),
    }


def lower() -> None:
    """Write what is counted now, never more than what was allowed."""
    now = counted()
    before = allowed()
    private = {
        module: min(count, before["private"].get(module, 0))
        for module, count in now.pop("private").items()
    }
    lines = ["# Lowered by `python -m tests.rooms`, never raised.\n"]
    lines += [f"{name} = {min(count, before[name])}\n" for name, count in now.items()]
    lines += ["\n", "[private]\n"]
    lines += [f'"{module}" = {count}\n' for module, count in sorted(private.items()) if count]
    ALLOWED.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    lower()
