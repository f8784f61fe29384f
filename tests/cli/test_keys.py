"""`meshmsg keys`, and verbs that take part with keys."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Security, Stream

WAIT_S = 60


def command(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which leaves this one's environment alone."""
    done = subprocess.run(
        [sys.executable, "-m", "meshmsg", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture
def keys(run: Callable[..., Any]) -> Callable[..., Any]:
    """`meshmsg keys` in this process."""

    def run_one(*arguments: object, status: int = 0) -> Any:
        done = run("keys", *map(str, arguments))
        assert done.exit_code == status, done.stderr
        return done

    return run_one


def secrets_of(folder: Path) -> list[str]:
    return [(folder / name).read_text().strip() for name in ("mesh.key", "peer.key")]


def test_from_new_keys_to_an_event(tmp_path: Path, keys: Callable[..., Any]) -> None:
    shop, desk = tmp_path / "shop", tmp_path / "desk"
    printed = [keys("new", shop, "--name", "shop")]
    mesh_key = shop / "mesh.key"
    printed.append(keys("new", desk, "--name", "desk", "--mesh-key-file", mesh_key, "--json"))
    made = json.loads(printed[-1].stdout)
    assert made["name"] == "desk"
    rights = ["--publish", "none", "--subscribe", "a.**", "--no-stats", "--json"]
    printed.append(keys("allow", shop, made["key"], "--name", "desk", *rights))
    allowed = json.loads(printed[-1].stdout)
    assert (allowed["publish"], allowed["subscribe"], allowed["stats"]) == ([], ["a.**"], False)
    printed.append(keys("show", shop, "--json"))
    shown = json.loads(printed[-1].stdout)
    assert [row["name"] for row in shown["allow"]] == ["shop", "desk"]
    printed.append(keys("allow", desk, shown["key"], "--name", "shop"))
    printed.append(keys("show", desk))
    assert shown["mesh_keys"][0] in printed[-1].stdout  # the same fingerprint
    for done in printed:
        for secret in secrets_of(shop) + secrets_of(desk):
            assert secret not in done.stdout + done.stderr
    with Peer("shop", streams=[Stream("a.**")], security=Security(key_dir=str(shop))) as peer:
        peer.publish("a.b", "hello")
        options = [
            "--connect",
            peer.address,
            "--count",
            1,
            "--start",
            "earliest",
            "--timeout",
            "50s",
        ]
        seen = command(
            "--keys", desk, "sub", "a.**", *options
        )  # by the name that the list gives it
        assert "hello" in seen.stdout
        refused = command("sub", "a.**", *options, status=1)
        assert "one side has a key and the other has none" in refused.stderr
    assert json.loads(keys("revoke", shop, "desk", "--json").stdout)["name"] == "desk"
    assert "is not on the list" in keys("revoke", shop, "desk", status=1).stderr


def test_any_name_is_given_only_where_it_is_asked_for(
    tmp_path: Path, keys: Callable[..., Any]
) -> None:
    keys("new", tmp_path / "k", "--name", "p")
    keys("allow", tmp_path / "k", "ab" * 32, "--name", "*")
    shown = json.loads(keys("show", tmp_path / "k", "--json").stdout)
    assert [row["name"] for row in shown["allow"]] == ["p", "*"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["new", "{dir}", "--name", "p"], "is there already"),
        (["new", "{dir}/x", "--name", "p", "--mesh-key-file", "{dir}/nothing"], "cannot be read"),
        (["new", "{dir}/x"], "say what the peer calls itself"),
        (["allow", "{dir}", "abc", "--name", "p"], "is not a public key"),
        (["allow", "{dir}", "ab" * 32], "say what the peer calls itself"),
        (["allow", "{dir}", "ab" * 32, "--name", "p", "--publish", "a..b"], "publish"),
        (["show", "{dir}/nothing"], "cannot be read"),
    ],
)
def test_wrong_usage_is_told(
    tmp_path: Path, arguments: list[str], problem: str, keys: Callable[..., Any]
) -> None:
    from meshmsg._access.key_files import new_folder

    new_folder(tmp_path / "k", "p", None)
    given = [text.format(dir=tmp_path / "k") for text in arguments]
    assert problem in keys(*given, status=2).stderr
