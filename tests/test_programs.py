"""Programs that tests run in other processes are files of tests/support/programs, not strings.

Lint, types and renames see a file, and not what a string says.  Commands of a line are no programs:
`RemotePeer.run` and `eval` take them (`tests/support/remote.py`).
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

import pytest

from tests import rooms
from tests.rooms import ROOT

#: A string of more lines that defines, imports or repeats something is a program.
LINES_MAX = 3
STATEMENTS = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom),
    *(ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try),
)

#: Strings that look like programs and are none.
ALLOWED = {
    "tests/test_programs.py": "what this test has to find",
    "tests/unit/meshmsg/_model/test_config.py": "a documented configuration in code, run as it is",
}


def text_of(node: ast.AST) -> str | None:
    """A string, of an f-string with a name for each of its fields."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or "field" for part in parts)
    return None


def parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):
        return None


def is_program(text: str) -> bool:
    if len(text.strip().splitlines()) <= LINES_MAX:
        return False
    tree = parsed(text)
    return tree is not None and any(isinstance(node, STATEMENTS) for node in ast.walk(tree))


def imports_meshmsg(text: str) -> bool:
    nodes = ast.walk(parsed(text) or ast.Module([], []))
    names = [
        name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", None), *(alias.name for alias in node.names))
    ]
    return any(name and name.partition(".")[0] == "meshmsg" for name in names)


def docstrings(tree: ast.AST) -> set[ast.AST]:
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.Module(body=[ast.Expr(value=ast.Constant() as first), *_])
                | ast.ClassDef(body=[ast.Expr(value=ast.Constant() as first), *_])
                | ast.FunctionDef(body=[ast.Expr(value=ast.Constant() as first), *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(value=ast.Constant() as first), *_])
            ):
                found.add(first)
    return found


def programs_in(source: str) -> Iterator[int]:
    """The lines where a program begins that is a string, or where one is given to `-c`."""
    tree = ast.parse(source)
    not_meant = docstrings(tree)
    given: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=parts):
                not_meant |= set(parts)  # the whole is looked at
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                given.setdefault(name, []).append(value)
    for node in ast.walk(tree):
        text = None if node in not_meant else text_of(node)
        if text is not None and is_program(text):
            yield node.lineno  # type: ignore[attr-defined]
        match node:
            case ast.List(elts=words) | ast.Tuple(elts=words) | ast.Call(args=words) if "-c" in map(
                text_of, words[:-1]
            ):
                code = words[[text_of(word) for word in words].index("-c") + 1]
                candidates = given.get(code.id, []) if isinstance(code, ast.Name) else [code]
                if any(imports_meshmsg(text_of(one) or "") for one in candidates):
                    yield code.lineno


def test_programs_are_files() -> None:
    found = [
        f"{path}:{line}"
        for path in rooms.paths("tests")
        if path not in ALLOWED
        for line in programs_in((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert found == [], "write a file in tests/support/programs"


def test_what_is_allowed_is_there() -> None:
    stale = [
        path for path in ALLOWED if not list(programs_in((ROOT / path).read_text(encoding="utf-8")))
    ]
    assert stale == []


LOOP = """
RUN = '''
n = 0
while n < 3:
    n += 1
stop(n)
'''
"""
IMPORT = '''
def start(n):
    """Not this one:

    import os
    """
    return f"""
    import os
    n = {n}
    m = {n + 1}
    os._exit(n + m)
    """
'''


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (LOOP, [2]),
        (IMPORT, [7]),
        ("start([exe, '-c', 'from meshmsg import Peer'])", [1]),
        ("run('-c', 'import meshmsg._peer.peer')", [1]),
        ("code = f'import meshmsg; {use}'\nrun((exe, '-c', code))", [2]),
        ("start([exe, '-c', 'import time; time.sleep(600)'])", []),
        ("run('sub', 'a.**', '-c', address)", []),
        ("sub.run('for n in range(9): peer.publish(topic, n)')", []),
        ("TOML = '[peer]\\nname = 1\\n[[stream]]\\ntopics = 2\\nkeep = 3'", []),
        ("TEXT = 'from what is here\\nnobody\\nimports\\nanything'", []),
    ],
)
def test_programs_in_strings_are_found(source: str, lines: list[int]) -> None:
    assert list(programs_in(source)) == lines
