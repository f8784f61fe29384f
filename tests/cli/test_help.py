"""Help, version, and how much the command loads before it does anything."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import meshmsg
from meshmsg._native import COMPILED
from meshmsg.cli import app
from meshmsg.cli._help import example_lines
from tests.support import processes

VERBS = (
    *("pub", "sub", "ledger", "peers", "doctor", "keys", "log", "record", "replay"),
    *("sink", "statsd", "webhook", "nng", "moldudp", "web", "bench"),
)


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


def examples(run: Any, *verb: str) -> str:
    """What stands below `Examples:`, as it can be copied from a terminal of 80 columns."""
    lines = [line.rstrip() for line in run(*verb, "--help").stdout.splitlines()]
    after = lines[lines.index(" Examples:") + 1 :]
    return textwrap.dedent("\n".join(after[: after.index("")])) + "\n"


@pytest.mark.parametrize("verb", VERBS)
def test_examples_can_be_pasted(run: Any, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = examples(run, verb)
    subprocess.run(["sh", "-n"], input=text.encode(), check=True)
    for command in re.sub(r"\\\n +", "", text).splitlines():
        plain = re.sub(r"'[^']*'", "Q", command)
        assert not re.search(r"[*?{}\[\]]", plain.partition("#")[0]), "the shell would change it"
        assert not re.search(r"\S  +(?!#)\S", plain), "a comment begins with #"
        words = command.partition("#")[0].split()
        assert not words or "meshmsg" in words, "a line that was folded is no command"


def commands(group: Any, *before: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *before, name)
        else:
            yield " ".join((*before, name)), command


def test_every_verb_that_joins_a_mesh_takes_the_same_options() -> None:
    joining = [
        (name, {option.name: option for option in command.params})
        for name, command in commands(typer.main.get_command(app))
    ]
    joining = [(name, options) for name, options in joining if "config" in options]
    assert len(joining) > 8
    for option in ("connect", "mesh", "name", "discovery", "interface"):
        texts = {options[option].help if option in options else name for name, options in joining}
        assert len(texts) == 1, (option, texts)


def test_a_long_example_goes_on_behind_a_backslash() -> None:
    words = "meshmsg sink --topics 'a b' --out ./lake/quotes -c tcp://127.0.0.1:7000 --check now"
    assert example_lines(words + "  # and so on") == [
        "# and so on",
        "meshmsg sink --topics 'a b' --out ./lake/quotes -c tcp://127.0.0.1:7000 \\",
        "    --check now",
    ]
    assert example_lines("meshmsg sub a  # short") == ["meshmsg sub a  # short"]


def test_completion_can_be_shown(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # It is that of the shell above us, which may be one that has none.
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    result = run("--show-completion")
    assert result.exit_code == 0
    assert "_MESHMSG_COMPLETE=complete_bash" in result.stdout


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
