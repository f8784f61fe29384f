"""Help, version, and how much the command loads before it does anything."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import meshmsg
from meshmsg._native import COMPILED
from tests.support import processes

VERBS = ("pub", "sub", "ledger", "peers", "log", "record", "replay", "moldudp", "bench")


def test_version_is_that_of_the_library(run: Any) -> None:
    result = run("--version")
    assert result.exit_code == 0
    way = "" if COMPILED else " (pure Python)"
    assert result.stdout == f"meshmsg {meshmsg.__version__}{way}\n"


def test_help_names_every_verb_and_the_way_in(run: Any) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for verb in VERBS:
        assert f" {verb} " in result.stdout
    assert "Examples:" in result.stdout
    assert "MESHMSG_CONNECT" in result.stdout


def test_words_in_brackets_are_shown(run: Any) -> None:
    assert "meshmsg[spark]" in run("sink", "--help").stdout


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_examples_on_lines_of_their_own(run: Any, verb: str) -> None:
    result = run(verb, "--help")
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    after = lines[lines.index("Examples:") + 1 :]
    assert f"meshmsg {verb}" in after[0]


@pytest.mark.parametrize("arguments", [("pubb",), ("pub", "--nope"), ("sub",), ("ledger", "extra")])
def test_unknown_words_are_wrong_usage(run: Any, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_python_m_meshmsg_is_the_command() -> None:
    command = [sys.executable, "-W", "error", "-m", "meshmsg", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("meshmsg ")
    assert done.stderr == ""


def test_start_up_loads_nothing_that_only_some_verbs_need() -> None:
    heavy = {"rich", "multiprocessing", "numpy", "pyarrow", "matplotlib", "pyspark", "pydantic"}
    command = processes.program("loaded_modules", "meshmsg.cli")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(done.stdout.split())
