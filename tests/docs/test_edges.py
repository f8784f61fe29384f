"""The edges' public names are pinned, and their pages say what is so."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from meshmsg import nanomsg, statsd, webhooks
from meshmsg.monitor import answers as _monitor_answers
from meshmsg.webhooks import server as _webhook_server
from tests.docs.signatures import spelled
from tests.support import processes

#: What verbs give, and nobody makes.
RETURNED = {webhooks: ("Delivery", "Endpoint")}
DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (nanomsg, ["NanomsgIn", "NanomsgOut"]),
        (statsd, ["ReportSender", "StatsdReporter", "StatsdServer"]),
        (webhooks, ["WebhookRegistry", "WebhookServer", "Webhooks"]),
    ],
)
def test_public_names_are_pinned_and_sorted(module: Any, names: list[str]) -> None:
    assert module.__all__ == sorted([*names, *RETURNED.get(module, ())])
    text = page(f"{module.__name__.rpartition('.')[2]}.md")
    for name in names:
        assert f"`{name}{spelled(getattr(module, name).__init__)}`" in text, name
    for name in RETURNED.get(module, ()):
        assert f"`{name}`" in text, name


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
    extras = {"aiohttp", "standardwebhooks", "pynng", "numpy", "datasketches", "statsd", "sqlite3"}
    extras |= {"prometheus_client", "meshmsg.monitor", "opentelemetry", "meshmsg.otel"}
    command = processes.program("loaded_modules", "meshmsg", "meshmsg.cli")
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert extras.isdisjoint(found.stdout.split())


@pytest.mark.parametrize(
    ("library", "extra", "uses"),
    [
        ("aiohttp", "webhooks", ["registry", "webhooks"]),
        ("standardwebhooks", "webhooks", ["registry"]),
        ("numpy", "statsd", ["server"]),
        ("statsd", "statsd", ["reporter"]),
        ("pynng", "nanomsg", ["nanomsg"]),
        ("prometheus_client", "monitor", ["monitor"]),
        ("opentelemetry", "otel", ["otel"]),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, extra: str, uses: list[str]
) -> None:
    command = processes.program("missing_library", library, *uses)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    told = done.stdout.splitlines()
    assert len(told) == len(uses)
    assert all(f"pip install 'meshmsg[{extra}]'" in line for line in told), told
