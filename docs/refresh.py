"""Bring what the pages quote up to date: example files and the tables of configuration fields.

    python docs/refresh.py

A marker stands on the line before what is quoted, and what follows it is replaced:

    <!-- from examples/01_hello.py -->      the code block that follows: the whole file
    <!-- fields of Stream -->               the table that follows: fields, defaults, docstrings
    <!-- metrics -->                        the table that follows: what a monitor shows

tests/docs/test_docs.py fails where a page is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from meshmsg import (
    Discovery,
    Feed,
    Monitor,
    Multicast,
    PeerConfig,
    Record,
    Security,
    Stream,
    Tuning,
)

ROOT = Path(__file__).resolve().parent.parent
_KINDS = (Stream, Multicast, Feed, Discovery, Record, Security, Monitor, Tuning, PeerConfig)
CONFIG_CLASSES = {kind.__name__: kind for kind in _KINDS}
LANGUAGES = {".py": "python", ".toml": "toml"}

_QUOTE = re.compile(r"<!-- from (?P<path>\S+) -->\n+```[a-z]*\n.*?^```$", re.DOTALL | re.MULTILINE)
_FIELDS = re.compile(r"<!-- fields of (?P<name>\w+) -->\n(?:\|[^\n]*\n)*")
_METRICS = re.compile(r"<!-- metrics -->\n(?:\|[^\n]*\n)*")


def pages() -> list[Path]:
    """Every page that may quote something."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def refreshed(text: str) -> str:
    """A page's text with everything quoted as it is now."""
    return _METRICS.sub(_metrics, _FIELDS.sub(_fields, _QUOTE.sub(_quote, text)))


def _metrics(found: re.Match[str]) -> str:
    lines = ["<!-- metrics -->", "| metric | labels | kind | |", "|---|---|---|---|"]
    for metric in metrics():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.shown}` | {labels} | {metric.kind} | {metric.help} |")
    return "\n".join(lines) + "\n"


def metrics() -> list[Any]:
    """Every metric of a peer's monitor, in the order in which they stand in the code."""
    from meshmsg.monitor import answers, parts, peer_metrics
    from meshmsg.monitor.metrics import Metric

    found: dict[Metric, None] = {}
    for module in (answers, parts, peer_metrics):
        for value in vars(module).values():
            if isinstance(value, Metric):
                found[value] = None
            elif isinstance(value, dict | tuple):
                several = value.values() if isinstance(value, dict) else value
                found |= {one: None for one in several if isinstance(one, Metric)}
    return list(found)


def _quote(found: re.Match[str]) -> str:
    path = found["path"]
    code = (ROOT / path).read_text(encoding="utf-8")
    return f"<!-- from {path} -->\n```{LANGUAGES[Path(path).suffix]}\n{code}```"


def _fields(found: re.Match[str]) -> str:
    name = found["name"]
    lines = [f"<!-- fields of {name} -->", "| field | default | meaning |", "|---|---|---|"]
    lines += [f"| `{field}` | {default} | {text} |" for field, default, text in fields_of(name)]
    return "\n".join(lines) + "\n"


def fields_of(name: str) -> list[tuple[str, str, str]]:
    """Name, default and docstring of each field of a configuration class."""
    kind = CONFIG_CLASSES[name]
    texts = _docstrings(kind)
    return [(f.name, _default(f), texts[f.name]) for f in dataclasses.fields(kind) if f.init]


def _docstrings(kind: type) -> dict[str, str]:
    """The text below each field, which only the source has."""
    body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
    return {
        ast.unparse(node.target): " ".join(ast.literal_eval(after.value).split())
        for node, after in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr)
    }


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory.__name__}()`"  # type: ignore[attr-defined]
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, int) and value % 1024 == 0:
        return f"{value // 1024} KiB" if value % 1024**2 else f"{value // 1024**2} MiB"
    return f"`{value!r}`"


def main() -> None:
    """Rewrite the pages that are out of date."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new = refreshed(text)
        if new != text:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
