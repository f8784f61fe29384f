"""Names, addresses and ports, in whichever form they are written."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from meshmsg.transports.discovery import addresses as reach
from meshmsg.transports.discovery.addresses import (
    Target,
    concrete,
    folder_scope,
    is_host,
    is_ip,
    is_loopback,
    join_target,
    resolve,
    round_trip_s,
    split_target,
    why_unreachable,
)
from tests.support.ports import free_port


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("tcp://a.b:7000", Target("a.b", 7000)),
        ("tcp://[::1]:65535", Target("::1", 65535)),
        ("ipc:///tmp/x", None),
        ("tcp://a", None),
        ("tcp://:1", None),
        ("tcp://a:0", None),
        ("tcp://a:65536", None),
        ("tcp://a:*", None),
        ("tcp://a:\u0661", None),
    ],
)
def test_an_address_is_split_if_it_can_be_dialled(address: str, target: Target | None) -> None:
    assert split_target(address) == target
    if target is not None:
        assert join_target(*target) == address


@pytest.mark.parametrize(
    ("host", "ip", "loopback", "single"),
    [
        ("127.0.0.1", True, True, True),
        ("::1", True, True, True),
        ("::ffff:127.0.0.1", True, True, True),
        ("localhost", False, True, False),
        ("10.1.2.3", True, False, True),
        ("0.0.0.0", True, False, False),
        ("::", True, False, False),
        ("239.1.1.1", True, False, False),
        ("ff02::1", True, False, False),
        ("255.255.255.255", True, False, False),
        ("::ffff:239.1.1.1", True, False, False),
        ("host", False, False, False),
    ],
)
def test_a_host_is_known_in_whichever_form(
    host: str, ip: bool, loopback: bool, single: bool
) -> None:
    assert (is_ip(host), is_loopback(host), is_host(host)) == (ip, loopback, single)


def test_a_wildcard_stands_for_all_our_addresses_loopback_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "local_addresses", lambda: ["127.0.0.1", "10.0.0.5"])
    expected = ["tcp://10.0.0.5:7000", "tcp://127.0.0.1:7000"]
    assert concrete("tcp://0.0.0.0:7000") == concrete("tcp://*:7000") == expected
    assert concrete("tcp://10.0.0.9:7000") == ["tcp://10.0.0.9:7000"]
    assert concrete("ipc://x") == ["ipc://x"]
    monkeypatch.setattr(reach, "local_addresses", list)
    assert concrete("tcp://*:7000") == ["tcp://*:7000"]


def test_a_name_resolves_to_its_addresses_once_each() -> None:
    found = resolve("localhost")
    assert "127.0.0.1" in found or "::1" in found
    assert len(found) == len(set(found))


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "x" * 70, "a b"])
def test_a_name_that_cannot_be_looked_up_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        resolve(host)


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_name_that_cannot_be_is_unreachable_in_words(host: str) -> None:
    assert why_unreachable(f"tcp://{host}:7000", 1.0)


def test_what_can_be_reached_and_what_not_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert why_unreachable(address, 30.0) == ""
        assert round_trip_s(address, 30.0) >= 0
    assert "refused" in why_unreachable(f"tcp://127.0.0.1:{free_port()}", 30.0)
    assert why_unreachable("ipc://x", 1.0) == ""
    assert "is not an address" in why_unreachable("udp://x", 1.0)


def test_a_folder_has_a_scope_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scope(folder: Path) -> str:
        monkeypatch.chdir(folder)
        folder_scope.cache_clear()
        return folder_scope()

    one, other = tmp_path / "a", tmp_path / "b"
    one.mkdir()
    other.mkdir()
    try:
        assert scope(one) == scope(one) != scope(other)
        root = scope(Path("/"))
        monkeypatch.chdir(other)
        other.rmdir()
        folder_scope.cache_clear()
        assert folder_scope() == root
    finally:
        folder_scope.cache_clear()
