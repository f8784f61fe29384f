"""A link, the table of links, the pages of a welcome, and which addresses may be dialled."""

from __future__ import annotations

import pytest

from meshmsg._links import outbound_peer as module
from meshmsg._links.outbound_peer import LinkTable, Listing, data_address, reachable
from meshmsg._model.errors import PeerRefused, ProtocolError
from meshmsg._wire.control import Welcome
from tests.support.linking import FAR, stream
from tests.support.receiving import link

HERE = "tcp://127.0.0.1:4000"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        (HERE, "127.0.0.1"),
        ("tcp://[::1]:4000", "::1"),
        ("ipc:///tmp/x", ""),
        ("tcp://a.b:1", "a.b"),
    ],
)
def test_host_of_a_link(address: str, host: str) -> None:
    assert link(address=address).host == host


@pytest.mark.parametrize(
    ("address", "host", "where"),
    [
        ("tcp://10.0.0.1:4000", "10.9.9.9", "tcp://10.9.9.9:4000"),  # back to where it came from
        ("tcp://0.0.0.0:4000", "::1", "tcp://[::1]:4000"),
        ("tcp://127.0.0.1:4000", "", "tcp://127.0.0.1:4000"),
        ("tcp://[::1]:4000", "", "tcp://[::1]:4000"),
        ("tcp://10.0.0.1:4000", "", ""),  # over ipc, only what is on this machine
        ("ipc:///tmp/x", "", "ipc:///tmp/x"),
        ("ipc:///tmp/x", "10.9.9.9", ""),
        ("tcp://10.0.0.1", "10.9.9.9", ""),
        ("tcp://10.0.0.1:0", "10.9.9.9", ""),
        ("tcp://10.0.0.1:65536", "10.9.9.9", ""),
        ("tcp://10.0.0.1:\u0664\u0665", "10.9.9.9", ""),
        ("udp://10.0.0.1:4000", "10.9.9.9", ""),
        ("", "10.9.9.9", ""),
    ],
)
def test_only_the_port_of_an_address_is_believed(address: str, host: str, where: str) -> None:
    assert reachable(address, host) == where


@pytest.mark.parametrize(
    ("dialled", "fanout", "data"),
    [
        (HERE, [("tcp://0.0.0.0:4000", "tcp://0.0.0.0:5000")], "tcp://127.0.0.1:5000"),
        (
            HERE,
            [("tcp://0.0.0.0:1", "tcp://0.0.0.0:2"), ("tcp://0.0.0.0:4000", "tcp://0.0.0.0:5")],
            "tcp://127.0.0.1:5",
        ),
        ("tcp://gate:9", [("tcp://10.0.0.1:1", "tcp://10.0.0.1:2")], "tcp://gate:2"),
        ("tcp://[::1]:1", [("tcp://[::]:1", "tcp://[::]:2")], "tcp://[::1]:2"),
        ("ipc:///a", [("ipc:///b", "ipc:///c"), ("ipc:///a", "ipc:///d")], "ipc:///d"),
        ("ipc:///a", [("tcp://x:1", "tcp://x:2"), ("ipc:///b", "ipc:///c")], "ipc:///c"),
    ],
)
def test_data_address_is_on_the_host_that_was_dialled(
    dialled: str, fanout: list[tuple[str, str]], data: str
) -> None:
    assert data_address(dialled, fanout) == data


@pytest.mark.parametrize(
    "fanout",
    [[], [("ipc:///b", "ipc:///c")], [(HERE, "tcp://x:port")], [(HERE, "tcp://x:99999")]],
)
def test_publisher_that_names_no_data_address_is_not_dialled(fanout: list[tuple[str, str]]) -> None:
    with pytest.raises(ProtocolError):
        data_address(HERE, fanout)


# The table -------------------------------------------------------------------------------------


def table(*states: str, given: bool = True) -> LinkTable:
    made = LinkTable()
    for n, state in enumerate(states):
        one = link(state, f"tcp://127.0.0.1:{n + 1}", reason="another mesh")
        one.given = given
        made.by_address[one.address] = one
    return made


def test_peer_that_the_user_named_is_awaited_until_it_answers_once() -> None:
    assert table("up", "greeting").is_one_awaited()
    assert not table("dialling", given=False).is_one_awaited()
    known = table("dialling")
    known.all()[0].peer = "far"  # it broke off
    assert not known.is_one_awaited()
    assert not table("refused").is_one_awaited()


def test_refusal_counts_when_all_that_the_user_named_refuse() -> None:
    assert table().refusal() is None
    assert table("refused", "dialling").refusal() is None
    assert table("refused", given=False).refusal() is None
    refusal = table("refused", "refused").refusal()
    assert isinstance(refusal, PeerRefused)
    assert "another mesh" in str(refusal)


def test_state_of_links_is_plain_data() -> None:
    known = table("up", "dialling")
    first = known.all()[0]
    first.peer, first.reconnects, first.streams = "far", 2, {"far/b": None, "far/a": None}  # type: ignore[dict-item]
    shown = known.stats()
    assert shown[0] | {"address": "", "reason": ""} == {
        "address": "",
        "state": "up",
        "peer": "far",
        "reason": "",
        "streams": ["far/a", "far/b"],
        "reconnects": 2,
    }
    assert shown[1]["reconnects"] == 0  # never connected
    assert [one.state for one in known.up()] == ["up"]


# Listings --------------------------------------------------------------------------------------


def page(number: int, instance: int = FAR) -> Welcome:
    return Welcome("far", instance, "default", [], [], page=number)


def test_pages_come_one_after_the_other_of_the_peer_that_began() -> None:
    to = link(instance=FAR)
    listing = Listing(to, FAR)
    assert listing.is_next(page(0), to)
    listing.pages = 1
    assert listing.is_next(page(1), to)
    assert not listing.is_next(page(2), to)
    assert not listing.is_next(page(1, FAR + 1), to)
    to.state = "dialling"
    assert not listing.is_next(page(1), to)


def test_listing_over_a_connection_that_stands_is_said_again() -> None:
    assert Listing(link(instance=FAR), FAR).again
    assert not Listing(link(instance=FAR), FAR + 1).again
    assert not Listing(link("greeting", instance=FAR), FAR).again


def test_stream_stands_once_in_a_listing_of_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 3)
    listing = Listing(link(), FAR)
    one, two = stream("far/1"), stream("far/2")
    assert listing.add(listing.streams, [one, two, one]) == {"far/1": one, "far/2": two}
    assert listing.add(listing.streams, [one, stream("far/3"), stream("far/4")]) == {}
    assert list(listing.streams) == ["far/1", "far/2"]
    assert list(listing.add(listing.streams, [two, stream("far/3")])) == ["far/3"]
