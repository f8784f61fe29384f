"""Edges without keys leave this machine only where that was said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshmsg._bridge.plaintext import check_plain, check_plain_url
from meshmsg._model.errors import ConfigError


def peer(*plain: str, secured: bool = True) -> Any:
    security = SimpleNamespace(plain=plain) if secured else None
    return SimpleNamespace(config=SimpleNamespace(security=security))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_is_always_allowed(host: str) -> None:
    check_plain(peer(), "statsd", host)


def test_beyond_this_machine_it_has_to_be_said() -> None:
    check_plain(peer(secured=False), "statsd", "10.0.0.1")
    check_plain(peer("statsd"), "statsd", "10.0.0.1")
    for given in (peer(), peer("nanomsg")):
        with pytest.raises(ConfigError, match="plain='statsd'"):
            check_plain(given, "statsd", "10.0.0.1")


@pytest.mark.parametrize(
    "url", ["ipc:///tmp/x", "inproc://x", "tls+tcp://far:1", "wss://far:1/x", "tcp://127.0.0.1:5"]
)
def test_urls_that_stay_here_or_have_keys_are_allowed(url: str) -> None:
    check_plain_url(peer(), "nanomsg", url)


@pytest.mark.parametrize(
    "url", ["tcp://10.0.0.1:5", "ws://far:1/x", "TCP://far:1", "tcp://*:5", "nonsense", "udp://x"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="nanomsg has no keys"):
        check_plain_url(peer(), "nanomsg", url)
