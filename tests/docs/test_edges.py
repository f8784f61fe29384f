"""The edges' public names are pinned, and their pages say what is so."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshmsg import nanomsg, statsd, webhooks
from meshmsg.monitor import answers as _monitor_answers
from meshmsg.webhooks import server as _webhook_server

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def spelled(function: Any) -> str:
    """A signature without annotations, as the pages write it."""
    parts, star = [], False
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts.append(f"*{name}")
            star = True
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        empty = parameter.default is parameter.empty
        parts.append(name if empty else f"{name}={parameter.default!r}")
    return f"({', '.join(parts)})"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (nanomsg, ["NanomsgIn", "NanomsgOut"]),
        (statsd, ["StatsdReporter", "StatsdServer"]),
        (webhooks, ["WebhookRegistry", "WebhookServer", "Webhooks"]),
    ],
)
def test_public_names_are_pinned_and_sorted(module: Any, names: list[str]) -> None:
    assert module.__all__ == sorted(names)
    text = page(f"{module.__name__.rpartition('.')[2]}.md")
    for name in names:
        assert f"`{name}{spelled(getattr(module, name).__init__)}`" in text, name


@pytest.mark.parametrize(
    "verb", ["add", "rotate", "deliveries", "resend", "endpoints", "remove", "enable", "ledger"]
)
def test_verbs_of_webhooks_stand_with_their_signatures(verb: str) -> None:
    function = getattr(webhooks.Webhooks, verb)
    assert f"`{verb}{spelled(function)}`" in page("webhooks.md")


@pytest.mark.parametrize(
    ("where", "counters"),
    [
        ("statsd.md", statsd.COUNTERS),
        ("webhooks.md", _webhook_server.COUNTERS),
        ("monitoring.md", _monitor_answers.COUNTERS),
        ("nanomsg.md", nanomsg.NanomsgIn.counters_shown + nanomsg.NanomsgOut.counters_shown),
    ],
)
def test_counters_are_explained(where: str, counters: tuple[str, ...]) -> None:
    text = page(where).rpartition("## Counters")[2]
    assert [name for name in counters if f"`{name}`" not in text] == []


def test_counters_of_deliveries_are_explained() -> None:
    root = DOCS.parent / "meshmsg" / "webhooks"
    code = "".join(
        (root / f"{name}.py").read_text(encoding="utf-8")
        for name in ("runner", "ingest", "dead_letters")
    )
    names = set(re.findall(r'counters\["(\w+)"\]', code))
    text = page("webhooks.md").rpartition("## Counters")[2]
    assert names
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_extras_are_not_imported_by_those_who_do_not_use_them() -> None:
    code = (
        "import sys, meshmsg, meshmsg.cli\n"
        "print([m for m in ('aiohttp', 'standardwebhooks', 'pynng', 'numpy', 'datasketches', "
        "'statsd', 'sqlite3', 'prometheus_client', 'http') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "extra", "use"),
    [
        ("aiohttp", "webhooks", "from meshmsg.webhooks import *; WebhookRegistry('x')"),
        ("standardwebhooks", "webhooks", "from meshmsg.webhooks import *; WebhookRegistry('x')"),
        ("aiohttp", "webhooks", "WebhookServer(Peer('x'), topic='a', scheme='none')"),
        ("numpy", "statsd", "from meshmsg.statsd import *; StatsdServer(Peer('x'))"),
        ("statsd", "statsd", "from meshmsg.statsd import *; StatsdReporter(Peer('x'))"),
        ("prometheus_client", "monitor", "import meshmsg; Peer('x', monitor='127.0.0.1:0').open()"),
        ("pynng", "nanomsg", "from meshmsg.nanomsg import *; NanomsgIn(Peer('x'), 'y')"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(module: str, extra: str, use: str) -> None:
    if "import" not in use:
        use = f"from meshmsg.webhooks import *; {use}"
    code = f"import sys; sys.modules[{module!r}] = None; from meshmsg import Peer; {use}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert f"pip install 'meshmsg[{extra}]'" in done.stderr
    assert "ConfigError" in done.stderr
