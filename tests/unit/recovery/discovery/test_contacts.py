"""Whom to dial, in what order, how often, and when to give up."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from meshmsg.recovery.discovery import contacts
from meshmsg.recovery.discovery.contacts import ContactBook, DialTiming

OWN = 100
TIMING = DialTiming(
    wait_s=0.4, attempt_s=2.0, retry_min_s=0.5, retry_max_s=15.0, keep_s=60.0, forget_s=120.0
)


@pytest.fixture
def book() -> ContactBook:
    return ContactBook(TIMING, OWN, random.Random(7))


def act(book: ContactBook, now: float, **known: Any) -> tuple[list[str], list[str]]:
    """Dial what is due, give up what did not answer; the addresses of both."""
    options = {"linked": set(), "met": set(), "room": 100} | known
    dials, given_up = book.actions(now=now, **options)
    for address, reason in given_up:
        book.on_failed(address, reason, now=now)
    return dials, [address for address, _ in given_up]


def state(book: ContactBook, place: int = 0) -> str:
    return str(book.report()[place]["state"])


def test_the_smaller_number_dials_at_once(book: ContactBook) -> None:
    book.learn(OWN + 1, "b", ("tcp://b",), "zeroconf", now=0.0)
    assert act(book, 0.0) == (["tcp://b"], [])


def test_the_greater_number_gives_the_other_side_a_moment(book: ContactBook) -> None:
    book.learn(OWN - 1, "b", ("tcp://b",), "zeroconf", now=0.0)
    assert act(book, 0.1) == ([], [])
    assert book.deadline() == 0.4
    assert act(book, 0.4, met={OWN - 1}) == ([], []), "it came"
    assert act(book, 1.0) == (["tcp://b"], []), "and is away again"


def test_who_is_connected_is_not_dialled(book: ContactBook) -> None:
    book.learn(OWN + 1, "b", ("tcp://b",), "gossip", now=0.0)
    assert act(book, 0.0, linked={OWN + 1}) == ([], [])


def test_itself_and_who_has_no_address_are_no_contacts(book: ContactBook) -> None:
    book.learn(OWN, "me", ("tcp://me",), "gossip", now=0.0)
    book.learn(OWN + 1, "b", (), "gossip", now=0.0)
    assert len(book) == 0
    assert book.deadline() == contacts.NEVER


def test_addresses_are_tried_one_after_the_other_and_then_with_growing_pauses(
    book: ContactBook,
) -> None:
    book.learn(OWN + 1, "b", ("tcp://one", "tcp://two"), "gossip", now=0.0)
    now = 0.0
    dialled: list[tuple[float, str]] = []
    while now < 60.0:
        book.learn(OWN + 1, "b", ("tcp://one", "tcp://two"), "gossip", now=now)
        dials, _ = act(book, now)
        dialled += [(now, address) for address in dials]
        dials, _ = act(book, now)  # the next address, at once
        dialled += [(now, address) for address in dials]
        now = round(now + 0.1, 1)
    assert [address for _, address in dialled[:4]] == ["tcp://one", "tcp://two"] * 2
    starts = [at for at, address in dialled if address == "tcp://one"]
    pauses = [b - a - 2 * TIMING.attempt_s for a, b in pairwise(starts)]
    assert len(pauses) >= 4
    assert all(b > a for a, b in pairwise(pauses))
    assert pauses[-1] <= TIMING.retry_max_s * 1.25 + 0.2


def test_many_are_dialled_at_once_but_not_all(book: ContactBook) -> None:
    for n in range(100):
        book.learn(OWN + 1 + n, f"p{n}", (f"tcp://{n}",), "gossip", now=0.0)
    dials, _ = act(book, 0.0)
    assert len(dials) == contacts.DIALS_MAX
    for n, address in enumerate(dials):
        book.on_up(address, OWN + 1 + n, "", now=0.1)
    dials, _ = act(book, 1.0, linked={OWN + 1 + n for n in range(64)})
    assert len(dials) == 100 - contacts.DIALS_MAX


def test_no_more_than_there_is_room_for(book: ContactBook) -> None:
    for n in range(10):
        book.learn(OWN + 1 + n, f"p{n}", (f"tcp://{n}",), "gossip", now=0.0)
    dials, _ = act(book, 0.0, room=3)
    assert len(dials) == 3
    assert book.held == 7


def test_forgotten_when_nobody_speaks_of_it(book: ContactBook) -> None:
    book.learn(OWN + 1, "b", ("tcp://b",), "gossip", now=0.0)
    now = 0.0
    while now < 100.0:
        act(book, now)
        now += 0.25
    assert len(book) == 1
    while now < 130.0:
        act(book, now)
        now += 0.25
    assert len(book) == 0


def test_seed_is_never_forgotten(book: ContactBook) -> None:
    book.seed("tcp://seed", "seed", now=0.0, forever=True)
    now, dialled = 0.0, 0
    while now < 1000.0:
        dials, _ = act(book, now)
        dialled += len(dials)
        now += 0.25
    assert dialled > 30
    assert book.report()[0]["reason"] == "no answer in 2 s"


def test_address_of_a_name_goes_when_the_name_does(book: ContactBook) -> None:
    book.seed("tcp://10.0.0.1", "name mesh", now=0.0)
    for now in range(60):
        act(book, float(now))
    book.seed("tcp://10.0.0.1", "name mesh", now=60.0)
    for now in range(60, 170):
        act(book, float(now))
    assert len(book) == 1
    for now in range(170, 200):
        act(book, float(now))
    assert len(book) == 0


def test_broken_connection_is_kept_dialling_and_then_given_up(book: ContactBook) -> None:
    book.learn(OWN + 1, "b", ("tcp://b",), "gossip", now=0.0)
    act(book, 0.0)
    book.on_up("tcp://b", OWN + 1, "b", now=0.1)
    assert state(book) == "up"
    book.on_down("tcp://b", now=10.0)
    assert state(book) == "down"
    assert act(book, 69.0) == ([], [])
    assert act(book, 70.0)[1] == ["tcp://b"]
    assert state(book) == "waiting"


def test_back_after_a_break(book: ContactBook) -> None:
    book.learn(OWN + 1, "b", ("tcp://b",), "gossip", now=0.0)
    act(book, 0.0)
    book.on_up("tcp://b", OWN + 1, "b", now=0.1)
    book.on_down("tcp://b", now=10.0)
    book.on_up("tcp://b", OWN + 1, "b", now=12.0)
    assert act(book, 100.0, linked={OWN + 1}) == ([], [])
    assert state(book) == "up"


def test_who_left_is_forgotten_but_for_a_seed(book: ContactBook) -> None:
    book.learn(OWN + 1, "b", ("tcp://b",), "gossip", now=0.0)
    book.seed("tcp://seed", "seed", now=0.0, forever=True)
    act(book, 0.0)
    book.on_up("tcp://b", OWN + 1, "b", now=0.1)
    book.on_up("tcp://seed", OWN + 2, "s", now=0.1)
    book.on_left("tcp://b", now=1.0)
    book.on_left("tcp://seed", now=1.0)
    act(book, 1.1)
    assert [entry["addresses"] for entry in book.report()] == [["tcp://seed"]]
    assert act(book, 3.0) == (["tcp://seed"], []), "somebody else may be there by now"


def test_second_address_of_a_peer_is_not_dialled_again(book: ContactBook) -> None:
    book.seed("tcp://name", "seed", now=0.0, forever=True)
    act(book, 0.0)
    book.on_same("tcp://name", OWN + 1, now=0.1)
    assert act(book, 100.0, linked={OWN + 1}) == ([], [])
    dials, _ = act(book, 101.0)
    assert dials == ["tcp://name"], "once it is away, the seed is as good as ever"


def test_address_that_somebody_else_has_by_now(book: ContactBook) -> None:
    book.learn(OWN + 1, "b", ("tcp://x", "tcp://y"), "gossip", now=0.0)
    act(book, 0.0)
    book.on_same("tcp://x", OWN + 5, now=0.1)
    assert book.report()[0]["reasons"] == {"tcp://x": "another peer answers there"}
    assert act(book, 0.2) == (["tcp://y"], [])


def test_new_address_of_a_contact_is_tried_first(book: ContactBook) -> None:
    book.learn(OWN - 1, "b", ("tcp://old",), "zeroconf", now=0.0)
    book.learn(OWN - 1, "b", ("tcp://new",), "gossip", now=0.1)
    assert act(book, 0.5) == (["tcp://new"], [])


def test_withdrawn_by_its_only_source(book: ContactBook) -> None:
    book.learn(OWN - 1, "b", ("tcp://b",), "zeroconf", now=0.0)
    book.learn(OWN - 1, "b", ("tcp://b",), "gossip", now=0.0)
    book.withdraw(OWN - 1, "zeroconf")
    assert len(book) == 1
    book.withdraw(OWN - 1, "gossip")
    book.withdraw(OWN - 7, "gossip")
    assert len(book) == 0


def test_number_of_contacts_is_bounded(book: ContactBook) -> None:
    for n in range(contacts.CONTACTS_MAX + 5):
        book.learn(OWN + 1 + n, "x", ("tcp://x",), "gossip", now=0.0)
    assert len(book) == contacts.CONTACTS_MAX
    assert book.full == 5


def test_what_anybody_says_makes_room_for_what_peers_say(
    book: ContactBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contacts, "CONTACTS_MAX", 3)
    for n in range(3):
        book.learn(OWN + 1 + n, "made up", (f"tcp://{n}",), "zeroconf", now=0.0)
    book.learn(OWN + 8, "a", ("tcp://a",), "zeroconf", now=0.0)
    book.learn(OWN + 9, "b", ("tcp://b",), "gossip", now=0.0)
    book.seed("tcp://c", "seed", now=0.0, forever=True)
    book.learn(OWN + 10, "d", ("tcp://d",), "met", now=0.0)
    book.learn(OWN + 11, "e", ("tcp://e",), "gossip", now=0.0)
    assert [one["addresses"] for one in book.report()] == [["tcp://b"], ["tcp://c"], ["tcp://d"]]


def test_dialled_back_peer_is_looked_after(book: ContactBook) -> None:
    book.adopt(OWN - 3, "b", "tcp://b", now=0.0)
    assert act(book, 0.1) == ([], [])
    assert act(book, 2.0) == ([], ["tcp://b"])
