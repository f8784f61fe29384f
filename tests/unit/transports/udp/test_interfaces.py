"""Interfaces are found by name or by address; others are refused with what there is."""

from __future__ import annotations

import pytest

from meshmsg._model.errors import ConfigError
from meshmsg.transports.udp import interfaces
from meshmsg.transports.udp.interfaces import (
    Interface,
    all_interfaces,
    find_interface,
    interface_mtu,
    local_addresses,
)

KNOWN = [Interface("lo", 1, "127.0.0.1"), Interface("eth0", 2, "10.0.0.5"), Interface("wg0", 3, "")]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "all_interfaces", lambda: KNOWN)


@pytest.mark.usefixtures("known")
def test_an_interface_is_found_by_name_and_by_address() -> None:
    assert find_interface("f", "eth0") == KNOWN[1]
    assert find_interface("f", "10.0.0.5") == KNOWN[1]
    assert find_interface("f", "wg0") == KNOWN[2]


@pytest.mark.usefixtures("known")
def test_any_address_of_loopback_is_there() -> None:
    assert find_interface("f", "127.0.0.7") == Interface("lo", 1, "127.0.0.7")


@pytest.mark.usefixtures("known")
def test_an_ipv6_address_leads_to_the_interface_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ipaddress

    names = {ipaddress.IPv6Address("fe80::5"): "eth0"}
    monkeypatch.setattr(interfaces, "_ipv6_names", lambda: names)
    assert find_interface("f", "fe80::5%eth0") == KNOWN[1]
    with pytest.raises(ConfigError):
        find_interface("f", "fe80::6")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("wanted", ["eth1", "10.0.0.6", "", "nonsense:1"])
def test_another_one_is_refused_with_what_there_is(wanted: str) -> None:
    with pytest.raises(ConfigError, match=r"eth0 \(10.0.0.5\), wg0 \(no IPv4\)") as caught:
        find_interface("interface", wanted)
    assert caught.value.field == "interface"


def test_loopback_is_known_by_address_or_name() -> None:
    assert KNOWN[0].is_loopback
    assert Interface("lo", 1, "").is_loopback
    assert not KNOWN[1].is_loopback
    assert not KNOWN[2].is_loopback


def test_this_machine_has_a_loopback_interface() -> None:
    [loopback] = [one for one in all_interfaces() if one.address == "127.0.0.1"]
    assert "127.0.0.1" in local_addresses()
    mtu = interface_mtu(loopback)
    assert mtu is not None
    assert mtu >= 1500
    assert interface_mtu(Interface("none-such", 99, "")) is None
