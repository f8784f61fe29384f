"""`meshmsg webhook`: registering, listing, sending again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream
from tests.support.hooks import Receiver
from tests.support.waiting import wait_until


def test_a_callback_is_registered_served_listed_and_forgotten(
    start: Any, run: Any, tmp_path: Path
) -> None:
    folder = ("--data-dir", str(tmp_path / "hooks"))
    orders = Stream("orders.**", durability="log")
    with (
        Receiver() as receiver,
        Peer("shop", streams=[orders], data_dir=tmp_path / "shop") as shop,
    ):
        runner = start("webhook", "run", "-c", shop.address, *folder)
        runner.wait_for_line("posting to 0 webhooks", err=True)
        # Registered by another process, while it runs.
        options = ("--topics", "orders.**", "--allow", "127.0.0.1", "--name", "hook", "--json")
        added = run("webhook", "add", receiver.url, *options, *folder)
        assert added.exit_code == 0, added.stderr
        secret = json.loads(added.stdout)["secret"]
        shop.publish("orders.eu", 7)
        wait_until(lambda: receiver.taken)
        assert receiver.taken[0].verify(secret)["data"] == 7

        wait_until(lambda: _states(run, folder) == ["delivered"])
        (delivery,) = _listed(run, folder)
        assert run("webhook", "resend", str(delivery["id"]), *folder).exit_code == 0
        wait_until(lambda: len(receiver.taken) == 2)
        wait_until(lambda: _states(run, folder) == ["delivered"] * 2)

        listed = run("webhook", "ls", "--json", *folder)
        assert listed.exit_code == 0
        one = json.loads(listed.stdout)
        assert (one["name"], one["state"], one["ledger"][0]["delivered"]) == ("hook", "active", 1)
        assert secret not in listed.stdout
        assert "hook" in run("webhook", "ls", *folder).stdout
        assert "delivered" in run("webhook", "deliveries", *folder).stdout

        rotated = run("webhook", "rotate", "hook", *folder).stdout.strip()
        assert rotated.startswith("whsec_")
        assert rotated != secret
        assert run("webhook", "enable", "hook", *folder).exit_code == 0
        assert run("webhook", "rm", "hook", *folder).exit_code == 0
        assert run("webhook", "ls", "--json", *folder).stdout == ""
        runner.interrupt()
        assert runner.end() == 130


def _listed(run: Any, folder: tuple[str, ...]) -> list[dict[str, Any]]:
    found = run("webhook", "deliveries", "--json", *folder)
    return [json.loads(line) for line in found.stdout.splitlines()]


def _states(run: Any, folder: tuple[str, ...]) -> list[str]:
    return [one["state"] for one in _listed(run, folder)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "https://10.0.0.1/x", "--topics", "a"),
        ("add", "http://example.com/x", "--topics", "a"),
        ("add", "https://example.com/x"),
        ("add", "https://example.com/x", "--topics", "a", "--order", "some"),
        ("add", "https://example.com/x", "--topics", "a", "--secret", "x"),
        ("rm", "nobody"),
        ("enable", "nobody"),
        ("rotate", "nobody"),
        ("deliveries", "nobody"),
        ("deliveries", "--state", "lost"),
        ("resend",),
        ("resend", "7"),
        ("resend", "7", "--dead", "x"),
        ("run",),
        ("serve", "--topic", "hooks.a", "--scheme", "none", "--remember", "0"),
        ("serve", "--topic", "hooks.a", "--scheme", "none", "--overflow", "often"),
    ],
)
def test_wrong_usage_is_said(run: Any, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = run("webhook", *arguments, "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr


def test_a_secret_comes_from_a_file_and_one_on_the_command_line_is_warned_about(
    run: Any, tmp_path: Path
) -> None:
    file, secret = tmp_path / "key", "whsec_" + "c2VjcmV0" * 4
    file.write_text(f"{secret}\n")
    file.chmod(0o600)
    add = ("webhook", "add", "https://example.com/x", "--topics", "a", "--data-dir", str(tmp_path))
    good = run(*add, "--name", "a", "--secret-file", str(file))
    assert (good.exit_code, good.stdout.split()[1], good.stderr) == (0, secret, "")
    warned = run(*add, "--name", "b", "--secret", secret)
    assert (warned.exit_code, warned.stdout.split()[1]) == (0, secret)
    assert "--secret is seen by everybody" in warned.stderr
    assert secret not in warned.stderr
    assert run(*add, "--secret-file", str(file), "--secret", secret).exit_code == 2
    new = "whsec_" + "bmV3c2VjcmV0" * 3
    file.write_text(new)
    turned = run("webhook", "rotate", "a", "--secret-file", str(file), "--data-dir", str(tmp_path))
    assert turned.stdout.strip() == new
    file.chmod(0o644)
    assert "chmod 600" in run(*add, "--secret-file", str(file)).stderr
    assert run(*add, "--secret-file", str(tmp_path / "none")).exit_code == 2


def test_the_environment_has_the_secrets_of_a_server_without_a_warning(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ("webhook", "serve", "--topic", "hooks.a", "--data-dir", str(tmp_path))
    monkeypatch.setenv("MESHMSG_WEBHOOK_SECRET", "no secret")
    found = run(*serve)
    assert (found.exit_code, "whsec_" in found.stderr) == (2, True)
    assert "everybody" not in found.stderr
    monkeypatch.delenv("MESHMSG_WEBHOOK_SECRET")
    assert "everybody" in run(*serve, "--secret", "no secret").stderr
    (tmp_path / "empty").touch(0o600)
    assert "is empty" in run(*serve, "--secret-file", str(tmp_path / "empty")).stderr


def test_a_folder_has_to_be_named(run: Any) -> None:
    result = run("webhook", "ls")
    assert result.exit_code == 2
    assert "--data-dir" in result.stderr
