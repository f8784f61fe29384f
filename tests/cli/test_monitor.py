"""`--monitor` of verbs that run for long, as processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

TOKEN = "0123456789abcdef0123"
AT = r"monitor at (http://\S+:\d+)/"


def get(url: str, token: str = "") -> tuple[int, str]:
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    "verb",
    [
        ("sub", "**", "--bind", "tcp://127.0.0.1:*"),
        ("record", "**", "--bind", "tcp://127.0.0.1:*", "--data-dir", "data"),
        ("statsd", "--bind", "127.0.0.1:0"),
        ("nng", "in", "tcp://127.0.0.1:0", "--listen", "--topic", "nng.x"),
        ("webhook", "serve", "--topic", "hooks.x", "--scheme", "none", "--bind", "127.0.0.1:0"),
        ("webhook", "run", "--data-dir", "data", "--mesh-bind", "tcp://127.0.0.1:*"),
    ],
    ids=lambda verb: " ".join(verb[:2]),
)
def test_verbs_that_run_for_long_show_their_figures(
    start: Any, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    words = [str(tmp_path / "data") if word == "data" else word for word in verb]
    running = start(*words, "--monitor", "127.0.0.1:0")
    url = running.wait_for_line(AT, err=True)[1]
    assert get(f"{url}/health") == (200, "alive\n")
    assert "meshmsg_peer_info" in get(f"{url}/metrics")[1]
    running.interrupt()
    assert running.end() in (0, 130)  # 0 where to be stopped is how it ends


def test_the_environment_and_a_file_say_it_too(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "mesh.toml"
    file.write_text('[peer]\nname = "desk"\nbind = "tcp://127.0.0.1:*"\nmonitor = "127.0.0.1:0"\n')
    running = start("sub", "**", "--config", str(file))
    url = running.wait_for_line(AT, err=True)[1]
    assert json.loads(get(f"{url}/stats")[1])["peer"] == "desk"
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    secret = {"MESHMSG_MONITOR": "0.0.0.0:0", "MESHMSG_MONITOR_TOKEN_FILE": str(token)}
    running = start("sub", "**", "--bind", "tcp://127.0.0.1:*", env=secret)
    url = running.wait_for_line(AT, err=True)[1].replace("0.0.0.0", "127.0.0.1")
    assert get(f"{url}/stats")[0] == 401
    assert get(f"{url}/stats", TOKEN)[0] == 200


def test_beyond_loopback_without_a_token_is_refused_in_words(run: Any) -> None:
    done = run("sub", "**", "--bind", "tcp://127.0.0.1:*", "--monitor", "0.0.0.0:0")
    assert done.exit_code == 2
    assert "MESHMSG_MONITOR_TOKEN_FILE" in done.stderr
    done = run("sub", "**", "--bind", "tcp://127.0.0.1:*", "--monitor", "9401")
    assert done.exit_code == 2
    assert "monitor: '9401' is not a host and a port" in done.stderr
    done = run("sink", "--out", "x", "--monitor", "127.0.0.1:1", "--metrics-port", "9400")
    assert done.exit_code == 2
    assert "another word for --monitor" in done.stderr
