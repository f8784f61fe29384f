"""`Monitor`: what is taken, what is refused and in which words, and what the environment says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from meshmsg import ConfigError, Monitor, Peer, PeerConfig
from meshmsg._model.config import load_toml

TOKEN = "0123456789abcdef0123"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"address": "9401"}, "not a host and a port"),
        ({"address": 9401}, "not a host and a port"),
        ({"address": "127.0.0.1:70000"}, "not a host and a port"),
        ({"address": "127.0.0.1:0", "token": "short"}, "is not a token"),
        ({"address": "127.0.0.1:0", "token": "with spaces, and long enough"}, "is not a token"),
        ({"address": "127.0.0.1:0", "token": TOKEN, "token_file": "x"}, "one of token"),
        ({"address": "127.0.0.1:0", "token_file": ""}, "not a path"),
        ({"address": "127.0.0.1:0", "blocked_max": "soon"}, "not a time"),
        ({"address": "127.0.0.1:0", "disk_free_min": 0}, "not a size"),
        ({"address": "127.0.0.1:0", "disk_share_min": 5}, "not a part"),
        ({"address": "127.0.0.1:0", "series_max": 0}, "not a number of time series"),
        ({"address": "127.0.0.1:0", "required": "yes"}, "not true or false"),
    ],
)
def test_what_cannot_be_is_refused_in_words(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        Monitor(**values)
    assert TOKEN not in str(caught.value)


def test_a_token_is_not_shown() -> None:
    assert TOKEN not in repr(Monitor("127.0.0.1:0", token=TOKEN))


def test_an_address_is_enough_and_none_is_none() -> None:
    assert PeerConfig("a", monitor="127.0.0.1:9401").monitor == Monitor("127.0.0.1:9401")  # type: ignore[arg-type]
    assert not Monitor("none").is_on
    assert Monitor.of(None) is None
    with pytest.raises(ConfigError, match="monitor: 5 is not an address"):
        Monitor.of(5)


def test_the_environment_says_it_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMSG_MONITOR", "127.0.0.1:9402")
    monkeypatch.setenv("MESHMSG_MONITOR_TOKEN", TOKEN)
    asked = Peer("a").config.monitor
    assert asked is not None
    assert (asked.address, asked.token, asked.required) == ("127.0.0.1:9402", TOKEN, False)
    given = Peer("a", monitor="127.0.0.1:9401").config.monitor
    assert given is not None
    assert (given.address, given.token, given.required) == ("127.0.0.1:9401", TOKEN, True)
    assert Peer("a", monitor="none").config.monitor == Monitor("none")


def test_a_token_file_is_read_and_belongs_to_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "monitor.token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    made = Monitor("0.0.0.0:9401", token_file=file)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="chmod 600"):
        made.secret()
    file.chmod(0o600)
    assert made.secret() == TOKEN.encode()
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is not a token"):
        made.secret()
    with pytest.raises(ConfigError, match="cannot be read"):
        Monitor("0.0.0.0:9401", token_file=str(tmp_path / "absent")).secret()


def test_mesh_toml_has_it_as_an_address_or_as_a_table(tmp_path: Path) -> None:
    file = tmp_path / "mesh.toml"
    file.write_text('[peer]\nname = "a"\nmonitor = "127.0.0.1:9401"\n')
    assert load_toml(file).monitor == Monitor("127.0.0.1:9401")
    file.write_text(
        '[peer]\nname = "a"\n[peer.monitor]\naddress = "0.0.0.0:9401"\ntoken_file = "t"\n'
        'blocked_max = "1m"\n'
    )
    asked = load_toml(file).monitor
    assert asked is not None
    assert (asked.token_file, asked.blocked_max) == (os.path.join(tmp_path, "t"), 60.0)
    file.write_text('[peer]\nname = "a"\n[peer.monitor]\naddress = "x"\n')
    with pytest.raises(ConfigError, match=r"peer\.monitor\.address: 'x' is not a host"):
        load_toml(file)
    file.write_text('[peer]\nname = "a"\nmonitor = "x"\n')
    with pytest.raises(ConfigError, match=r"peer\.monitor: 'x' is not a host"):
        load_toml(file)
