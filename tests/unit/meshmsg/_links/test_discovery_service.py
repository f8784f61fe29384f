"""Who is found and dialled, who is told what, and which addresses nobody can have us dial."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from meshmsg._links import discovery_service, resolver
from meshmsg._links.discovery_service import ITSELF, RENEW_S, Doings
from meshmsg._model.discovery_config import Discovery
from meshmsg._model.errors import ProtocolError
from meshmsg._peer.presence import PeerWatch
from meshmsg._wire import control as c
from meshmsg.transports.discovery.mdns import Service
from tests.support.linking import FAR, HERE, ME, Linking, client, linking
from tests.support.waiting import wait_until

ON = Discovery(zeroconf=False)
THERE, LAN = "tcp://127.0.0.1:7", "tcp://10.0.0.7:7"


def opened(side: Linking) -> Linking:
    side.finder.open()
    return side


@pytest.fixture(autouse=True)
def beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test sets the time: pings are due a second after the last, whenever this process pings."""
    monkeypatch.setattr(discovery_service, "next_beat", lambda now, every_s: now + every_s)


@pytest.fixture
def side() -> Iterator[Linking]:
    with linking(ON) as made:
        yield opened(made)


def card(instance: int = FAR, *addresses: str, serial: int = 1, **fields: Any) -> c.Here:
    given = {"streams": [], "groups": [], "roles": [], "software": "1"}
    return c.Here(f"p{instance}", instance, serial, list(addresses), **{**given, **fields})


def meet(side: Linking, instance: int = FAR, *addresses: str, host: str = "127.0.0.1") -> None:
    """A peer that is connected shows its card."""
    side.clients[b"%d" % instance] = client(f"p{instance}", instance, host, time.monotonic())
    side.finder.on_here(instance, host, card(instance, *addresses))


def later(seconds: float = 0.0) -> float:
    return time.monotonic() + seconds


def dialled(side: Linking, after: float = 1.0) -> set[str]:
    side.finder.on_tick(later(after))
    return set(side.table.by_address)


# Who is dialled --------------------------------------------------------------------------------


def test_seeds_are_dialled_and_our_own_address_is_not() -> None:
    with linking(Discovery(zeroconf=False, seeds=(THERE, HERE))) as side:
        assert dialled(opened(side)) == {THERE}
        (link,) = side.table.all()
        assert (link.given, link.found) == (False, True)


def test_peer_that_dialled_us_is_dialled_only_if_it_has_streams(side: Linking) -> None:
    meet(side, FAR, THERE)
    assert dialled(side) == set()
    side.finder.on_here(FAR, "127.0.0.1", card(FAR, THERE, serial=2, streams=["x/a"]))
    assert dialled(side, 5.0) == {THERE}


def test_peers_that_others_know_are_dialled_where_gossip_is_on() -> None:
    known = [c.Contact("other", FAR + 1, [THERE])]
    for gossip, found in ((True, {THERE}), (False, set())):
        with linking(Discovery(zeroconf=False, gossip=gossip, seeds=(LAN,))) as side:
            opened(side).finder.on_here(FAR, "127.0.0.1", card(FAR, known=known))
            assert dialled(side) - {LAN} == found


@pytest.mark.parametrize(
    ("address", "host", "usable"),
    [
        (THERE, "127.0.0.1", True),
        (THERE, "", True),  # over ipc: on this machine
        (THERE, "10.0.0.7", False),
        ("tcp://[::ffff:127.0.0.1]:7", "10.0.0.7", False),
        (LAN, "10.0.0.7", False),  # nobody has said that we go beyond this machine
        ("tcp://some.name:7", "127.0.0.1", False),
        ("tcp://0.0.0.0:7", "127.0.0.1", False),
        ("tcp://224.0.0.1:7", "127.0.0.1", False),
        ("tcp://255.255.255.255:7", "127.0.0.1", False),
        ("udp://127.0.0.1:7", "127.0.0.1", False),
    ],
)
def test_addresses_that_others_tell_are_dialled_only_where_that_is_safe(
    side: Linking, address: str, host: str, usable: bool
) -> None:
    known = [c.Contact("other", FAR + 1, [address])]
    side.finder.on_here(FAR, host, card(FAR, known=known))
    assert dialled(side) == ({address} if usable else set())


def test_network_is_dialled_where_we_were_told_to_go_there() -> None:
    with linking(Discovery(zeroconf=False, advertise=("tcp://10.0.0.1:4000",))) as side:
        known = [c.Contact("other", FAR + 1, [LAN, THERE])]
        opened(side).finder.on_here(FAR, "10.0.0.9", card(FAR, known=known))
        assert dialled(side) == {LAN}
        assert side.finder.own_addresses() == ["tcp://10.0.0.1:4000"]


def test_peer_is_known_by_the_host_that_it_is_seen_at(side: Linking) -> None:
    meet(side, FAR, "tcp://10.9.9.9:7")
    assert side.finder.peers()[0].addresses == (THERE,)


def test_no_more_peers_are_dialled_than_the_limit() -> None:
    with linking(Discovery(zeroconf=False, peers_max=1, seeds=(THERE, LAN))) as side:
        assert len(dialled(opened(side))) == 1
        with linking(Discovery(zeroconf=False, peers_max=1, seeds=(THERE,))) as full:
            full.up("tcp://127.0.0.1:1", "far", FAR)
            assert dialled(opened(full)) == {"tcp://127.0.0.1:1"}
            assert full.counters["peers_full"] == 1


def test_address_that_cannot_be_dialled_costs_itself(
    side: Linking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(address: str, **_: Any) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(side.links, "dial", fail)
    side.finder.on_here(FAR, "", card(FAR, known=[c.Contact("o", FAR + 1, [THERE])]))
    assert dialled(side) == set()
    assert side.counters["dial_errors"] == 1


def test_nobody_is_looked_for_where_discovery_is_off() -> None:
    with linking("none") as side:
        opened(side)
        side.finder.on_here(FAR, "", card(FAR, THERE, known=[c.Contact("o", FAR + 1, [THERE])]))
        assert dialled(side) == set()
        assert [info.name for info in side.finder.peers()] == [f"p{FAR}"]


# How it goes -----------------------------------------------------------------------------------


def seeded(side: Linking) -> Any:
    """A seed that is being dialled."""
    side.finder.contacts.seed(THERE, "seed", now=later(), forever=True)
    side.finder.on_tick(later(1.0))
    return side.table.by_address[THERE]


def reason(side: Linking) -> str:
    return str(side.finder.stats()["contacts"][0]["reason"])


def test_address_where_nobody_answers_is_given_up_and_tried_again(side: Linking) -> None:
    seeded(side)
    side.finder.on_tick(later(4.0))
    assert side.table.all() == []
    assert "no answer in 2 s" in reason(side)
    assert dialled(side, 30.0) == {THERE}


def test_refusal_is_told_and_ourselves_are_forgotten(side: Linking) -> None:
    link = seeded(side)
    link.state, link.reason = "refused", "another mesh"
    side.finder.on_tick(later(2.0))
    assert side.table.all() == []
    assert reason(side) == "another mesh"
    link = seeded_again(side)
    link.state, link.reason = "refused", ITSELF
    side.finder.on_tick(later(90.0))
    assert side.finder.stats()["contacts"] == []


def seeded_again(side: Linking) -> Any:
    side.finder.on_tick(later(60.0))
    return side.table.by_address[THERE]


def test_older_start_of_a_peer_is_given_up_when_the_new_one_answers(side: Linking) -> None:
    old, new = side.up(THERE, "far", FAR), side.up(LAN, "far", FAR + 1)
    old.found, old.state = True, "dialling"
    other = side.up("tcp://127.0.0.1:9", "other", FAR + 2)
    side.finder.on_welcome(new)
    assert side.table.all() == [new, other]
    assert side.said(c.Here, new)  # who we are


def test_where_a_peer_can_be_found_is_where_it_answered_and_what_it_says(side: Linking) -> None:
    link = side.up(THERE, "far", FAR)
    assert side.finder.where(link) == [THERE]
    side.finder.on_here(FAR, "127.0.0.1", card(FAR, "tcp://127.0.0.1:8", THERE))
    assert side.finder.where(link) == [THERE, "tcp://127.0.0.1:8"]


@pytest.mark.parametrize(("host", "ipc"), [("", ["ipc:///x"]), ("10.0.0.7", [])])
def test_ipc_is_for_this_machine(side: Linking, host: str, ipc: list[str]) -> None:
    assert list(side.finder.told_of(["ipc:///x", "tcp://no.name:1"], host)) == ipc


# Presence --------------------------------------------------------------------------------------


@pytest.fixture
def watch(side: Linking) -> Iterator[PeerWatch]:
    with side.finder.hub.watch(PeerWatch) as made:
        yield made


def seen(watch: PeerWatch) -> list[str]:
    return [change.kind for change in iter(lambda: watch.get(0), None)]


def test_peer_comes_changes_and_leaves(side: Linking, watch: PeerWatch) -> None:
    meet(side)
    side.finder.on_here(FAR, "", card(FAR, serial=2, roles=["publisher"]))
    side.finder.on_here(FAR, "", card(FAR, serial=2))  # over another connection
    side.finder.on_bye(FAR)
    assert seen(watch) == ["joined", "changed", "left"]
    assert side.finder.peers() == []


def test_silent_peer_is_lost_and_back_by_any_sign_of_life(side: Linking, watch: PeerWatch) -> None:
    meet(side)
    for step in range(7):
        side.finder.on_tick(later(float(step)))
    assert seen(watch) == ["joined", "lost"]
    side.clients[b"%d" % FAR].last_seen = later(8.0)
    side.finder.on_tick(later(8.0))
    assert seen(watch) == ["joined"]


def test_nobody_is_to_blame_while_this_process_did_not_run(side: Linking, watch: PeerWatch) -> None:
    meet(side)
    side.finder.forgive(100.0)
    for step in range(20):
        side.finder.on_tick(later(float(step)))
    assert seen(watch) == ["joined"]


def test_card_of_somebody_else_is_bad_form(side: Linking) -> None:
    with pytest.raises(ProtocolError):
        side.finder.on_here(FAR, "", card(FAR + 1))


def test_link_that_was_found_ends_with_the_good_bye_on_the_other_connection(
    side: Linking,
) -> None:
    found, named = side.up(THERE, "far", FAR), side.up(LAN, "far", FAR)
    found.found, found.state, named.state = True, "dialling", "dialling"
    side.finder.on_bye(FAR)
    assert side.table.all() == [named]


# What is told ----------------------------------------------------------------------------------


def test_who_connects_is_told_who_we_are_and_of_whom_we_know(side: Linking) -> None:
    meet(side, FAR, THERE)
    meet(side, FAR + 1, "tcp://127.0.0.1:8")
    meet(side, FAR + 2)  # nobody can reach it
    side.finder.greet(b"new", FAR)
    (here,) = side.said(c.Here, b"new")
    assert (here.peer, here.instance, here.addresses) == ("me", ME, [HERE])
    assert [contact.instance for contact in here.known] == [FAR + 1]


def test_what_we_do_is_told_to_all_when_it_changes(side: Linking) -> None:
    meet(side)
    side.finder.on_tick(later())
    side.sent.clear()
    side.doings = Doings(("me/a",), (), ("publisher",))
    side.finder.on_tick(later(1.5))
    told = [one for _, one in side.sent if isinstance(one, c.Here) and not one.known]
    assert [(here.streams, here.roles) for here in told] == [(["me/a"], ["publisher"])]
    side.sent.clear()
    side.finder.on_tick(later(3.0))
    assert [one for _, one in side.sent if isinstance(one, c.Here) and not one.known] == []


def test_questions_reach_each_peer_once_by_its_address(side: Linking) -> None:
    link = side.up(THERE, "far", FAR)
    side.clients[b"x"] = client("far", FAR)  # it dialled us, too
    meet(side, FAR + 1, "tcp://127.0.0.1:8")
    meet(side, FAR + 2)
    assert side.finder.questioned() == {
        THERE: link,
        "tcp://127.0.0.1:8": b"%d" % (FAR + 1),
        f"p{FAR + 2}": b"%d" % (FAR + 2),
    }
    assert side.finder.connected() == 3


# Zeroconf --------------------------------------------------------------------------------------


class Beacon:
    """Zeroconf: a test says what it hears."""

    services: ClassVar[list[Service]] = []

    def __init__(self, hosts: Any, listener: Any) -> None:
        Beacon.listener = staticmethod(listener)

    def announce(self, *_: Any) -> None:
        pass

    def known(self) -> list[Service]:
        return Beacon.services

    def close(self) -> None:
        pass


def service(port: int = 7, **records: str) -> Service:
    given = {"mesh": "prod", "peer": "far", "id": f"{FAR:x}"}
    return Service("s", ("127.0.0.1", "10.0.0.7"), port, {**given, **records})


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Linking]:
    Beacon.services = []
    monkeypatch.setattr(resolver, "new_beacon", Beacon)
    with linking(Discovery(zeroconf=True), mesh="prod") as side:
        opened(side)
        wait_until(lambda: side.finder.stats()["zeroconf"]["state"] == "on")
        yield side


def hear(side: Linking, there: bool, one: Service) -> None:
    Beacon.listener(there, one)  # type: ignore[attr-defined]
    for call in side.calls:
        call()
    side.calls.clear()


def test_announced_peer_of_our_mesh_is_dialled(heard: Linking) -> None:
    hear(heard, True, service())
    assert dialled(heard) == {THERE}


@pytest.mark.parametrize(
    ("records", "strange"),
    [
        ({"mesh": "other"}, 0),
        ({"scope": "folder"}, 0),
        ({"id": f"{ME:x}"}, 0),
        ({"id": "x"}, 1),
        ({"peer": "a b\n"}, 1),
        ({"peer": ""}, 1),
    ],
)
def test_other_services_are_not(heard: Linking, records: Any, strange: int) -> None:
    hear(heard, True, service(**records))
    assert dialled(heard) == set()
    assert heard.counters["strange_services"] == strange


def test_peer_that_is_announced_no_more_is_not_dialled(heard: Linking) -> None:
    hear(heard, True, service())
    hear(heard, False, service())
    assert dialled(heard) == set()


def test_what_is_still_announced_is_taken_up_again_now_and_then(heard: Linking) -> None:
    heard.finder.on_tick(later())
    Beacon.services = [service()]
    heard.finder.on_tick(later(RENEW_S / 2))
    assert heard.table.all() == []
    heard.finder.on_tick(later(RENEW_S + 1.0))
    assert dialled(heard, RENEW_S + 2.0) == {THERE}
