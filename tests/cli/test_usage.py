"""Wrong usage: exit status 2 and one line that says what would be right, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshmsg

CONNECT = ("--connect", "tcp://127.0.0.1:9")

WRONG = [
    (("pub", "a.b", "x"), "--connect: say where the other peers are"),
    (("sub", "a.b"), "--connect: say where the other peers are"),
    (("ledger",), "--connect: name at least one peer to ask"),
    (("peers",), "--connect: name at least one peer to ask"),
    (("pub", "a.b", "x", "--connect", "nonsense"), "--connect: 'nonsense' is not an address"),
    (("sub", "a.b", "--bind", "tcp://127.0.0.1:99999"), "--bind: 'tcp://127.0.0.1:99999'"),
    (
        ("pub", "a.b", "x", *CONNECT, "--overflow", "dropp"),
        "--overflow: 'dropp' is not one of block",
    ),
    (("pub", "a..b", "x", *CONNECT, "--wait", "0"), "topic: "),
    (("pub", "a.*", "x", *CONNECT, "--wait", "0"), "topic: "),
    (("sub", "a..b", *CONNECT), "pattern"),
    (
        ("sub", "a.b", *CONNECT, "--start", "yesterday"),
        "--start: 'yesterday' is not live, earliest",
    ),
    (("sub", "a.b", *CONNECT, "--start", "committed"), "'committed' is for programs"),
    (("sub", "a.b", *CONNECT, "--timeout", "soon"), "--timeout: 'soon' is not a time"),
    (("sub", "a.b", *CONNECT, "--name", "a/b"), "--name: 'a/b' may not have"),
    (("sub", "a.b", *CONNECT, "--config", "missing.toml"), "missing.toml: cannot be read"),
    (("pub", "a.b", "x", *CONNECT, "--header", "nope"), "--header: 'nope' is not of the form"),
    (("pub", "a.b", "{", *CONNECT, "--json"), "DATA: '{' is not JSON"),
    (("pub", *CONNECT), "TOPIC: is missing"),
    (("pub", "a.b", "x", *CONNECT, "--lines"), "--lines: reads standard input"),
    (("pub", "a.b", *CONNECT, "--lines", "--json"), "--lines: does not go with --json"),
    (("pub", "a.b", "x", *CONNECT, "--events"), "--events: reads standard input"),
    (("pub", "a.{id}", "x", *CONNECT), "DATA: has no field 'id'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_says_what_would_be_right(run: Any, arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("meshmsg: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 1: 'nonsense' is not JSON"),
        ('"text"', "line 1: is not an event"),
        ('{"topic": "a", "data": 1, "color": 2}', "line 1: 'color' is not a field"),
        ('{"topic": "a", "data_b64": "%%%"}', "line 1: data_b64 is not base64"),
        ('{"data": 1}', "line 1: there is no topic"),
        ('{"topic": "a..b", "data": 1}', "topic: "),
        ('{"topic": "a", "key": 7, "data": 1}', "key: must be a str"),
    ],
)
def test_bad_lines_are_named(run: Any, line: str, message: str) -> None:
    result = run("pub", "--events", *CONNECT, "--wait", "0", "--quiet", input=line + "\n")
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_taken_port_is_named(run: Any) -> None:
    with meshmsg.Peer("holder", bind="tcp://127.0.0.1:*") as holder:
        result = run("sub", "a.b", "--bind", holder.address)
    assert result.exit_code == 2
    assert f"bind '{holder_port(result.stderr)}': the port is taken" in result.stderr


def holder_port(text: str) -> str:
    return text.partition("bind '")[2].partition("'")[0]


def test_a_topic_outside_the_configured_streams_is_wrong_usage(run: Any, tmp_path: Path) -> None:
    config = tmp_path / "mesh.toml"
    config.write_text(
        '[peer]\nname = "p"\nbind = ["tcp://127.0.0.1:*"]\n[[stream]]\ntopics = "a.**"\n'
    )
    result = run("pub", "b.c", "x", "--config", str(config), "--wait", "0")
    assert result.exit_code == 2
    assert "no stream of this peer takes topic 'b.c'" in result.stderr


def test_a_wrong_key_in_the_configuration_is_named(run: Any, tmp_path: Path) -> None:
    config = tmp_path / "mesh.toml"
    config.write_text('[peer]\nname = "p"\nbnd = "tcp://127.0.0.1:*"\n')
    result = run("sub", "a", "--config", str(config))
    assert result.exit_code == 2
    assert "peer.bnd" in result.stderr
    assert "did you mean 'bind'?" in result.stderr
