"""One responder serves the peers of a process; listeners hear what is known and what changes."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg.transports.discovery import mdns
from meshmsg.transports.discovery.mdns import Beacon, Responder, Service


class FakeInfo:
    """What zeroconf tells of a service."""

    def __init__(self, kind: str, name: str) -> None:
        self.name = name
        self.port = 7000 if "empty" not in name else 0
        self.decoded_properties = {"mesh": "m", "none": None}

    def load_from_cache(self, zc: object) -> bool:
        return True

    def parsed_addresses(self) -> list[str]:
        return ["10.0.0.1"]


def quiet() -> Responder:
    """A responder without sockets."""
    import threading

    made = object.__new__(Responder)
    made.users = 0
    made._lock = threading.Lock()
    made._services = {}
    made._listeners = []
    return made


def test_targets_are_addresses_to_dial() -> None:
    service = Service("n", ("10.0.0.1", "fe80::1"), 7000, {})
    assert service.targets == ("tcp://10.0.0.1:7000", "tcp://[fe80::1]:7000")


@pytest.fixture
def responder(monkeypatch: pytest.MonkeyPatch) -> Responder:
    import zeroconf

    monkeypatch.setattr(zeroconf, "ServiceInfo", FakeInfo)
    return quiet()


def test_a_listener_hears_of_what_is_known_and_of_what_changes(responder: Responder) -> None:
    zc: Any = None
    responder.add_service(zc, mdns.SERVICE, "a")
    heard: list[tuple[bool, str]] = []

    def listener(there: bool, service: Service) -> None:
        heard.append((there, service.name))

    responder.listen(listener)
    responder.add_service(zc, mdns.SERVICE, "b")
    responder.remove_service(zc, mdns.SERVICE, "a")
    responder.remove_service(zc, mdns.SERVICE, "unknown")
    assert heard == [(True, "a"), (True, "b"), (False, "a")]
    responder.unlisten(listener)
    responder.add_service(zc, mdns.SERVICE, "c")
    assert len(heard) == 3
    assert [one.name for one in responder.known()] == ["b", "c"]


def test_a_service_without_a_port_is_passed_over_and_records_are_texts(
    responder: Responder,
) -> None:
    zc: Any = None
    responder.add_service(zc, mdns.SERVICE, "empty")
    responder.add_service(zc, mdns.SERVICE, "a")
    assert [one.records for one in responder.known()] == [{"mesh": "m", "none": ""}]


def test_services_are_bounded_and_known_ones_still_change(
    responder: Responder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mdns, "SERVICES_MAX", 2)
    zc: Any = None
    for name in ("a", "b", "c", "a"):
        responder.add_service(zc, mdns.SERVICE, name)
    assert [one.name for one in responder.known()] == ["a", "b"]


class SharedResponder:
    made = 0

    def __init__(self, interfaces: tuple[str, ...]) -> None:
        SharedResponder.made += 1
        self.users = 0
        self.log: list[str] = []
        self.info: Any = None

    def listen(self, listener: object) -> None:
        self.log.append("listen")

    def unlisten(self, listener: object) -> None:
        self.log.append("unlisten")

    def announce(self, info: Any) -> None:
        self.info = info

    def withdraw(self, info: Any) -> None:
        self.log.append("withdraw")

    def close(self) -> None:
        self.log.append("close")


def test_peers_share_a_responder_that_ends_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdns, "Responder", SharedResponder)
    before = SharedResponder.made
    one = Beacon(("127.0.0.1",), lambda there, service: None)
    two = Beacon(("127.0.0.1",), lambda there, service: None)
    assert SharedResponder.made == before + 1
    shared: Any = one._responder
    one.announce("ü" * 40 + "-0123456789abcdef", ("127.0.0.1",), 7000, {"k": "v"})
    label = shared.info.name.removesuffix(f".{mdns.SERVICE}")
    assert len(label.encode()) <= mdns.LABEL_BYTES_MAX
    one.close()
    assert shared.log == ["listen", "listen", "unlisten", "withdraw"]
    two.close()
    assert shared.log[-1] == "close"
    assert not mdns._shared
