"""Whom to dial: what seeds, names, mDNS and other peers told of, and how each attempt went.

A contact has one or several addresses, tried one after the other; when all have failed there is a
pause that grows.  Many contacts are dialled at once.  Of two peers that found each other the one
with the smaller number dials; the other does after a moment, if nothing came of it.  Contacts that
nobody speaks of any more are forgotten, seeds never.
"""

from __future__ import annotations

import random
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

NEVER = float("inf")
CONTACTS_MAX = 4096
#: Where anybody on the network can tell of as many as it likes: others' words go before its.
ANYBODY = "zeroconf"
ADDRESSES_MAX = 16
#: Attempts under way at once.
DIALS_MAX = 64


@dataclass(frozen=True, slots=True)
class DialTiming:
    """Constants, in seconds."""

    wait_s: float = 0.4
    """Given to the other side, where it is its turn to dial."""
    attempt_s: float = 2.0
    """An address that did not answer for this long has failed."""
    retry_min_s: float = 0.5
    """The first pause after all addresses have failed; each further one is twice as long."""
    retry_max_s: float = 15.0
    """But never longer than this."""
    put_off_s: float = 2.0
    """The pause where a peer is there and cannot be taken yet."""
    keep_s: float = 60.0
    """A connection that broke is kept dialling at the same address for this long."""
    forget_s: float = 120.0
    """A contact that nobody spoke of for this long is forgotten."""


@dataclass(slots=True)
class Contact:
    """Somebody who may be there."""

    addresses: tuple[str, ...]
    instance: int | None = None
    name: str = ""
    #: Who told of it, and when last.
    sources: dict[str, float] = field(default_factory=dict)
    is_seed: bool = False
    #: `waiting` for `due`, `dialling` until `due`, `up`, or `down` (was up) until `due`.
    state: str = "waiting"
    due: float = 0.0
    place: int = 0
    tries: int = 0
    reason: str = ""
    #: Why, of the last attempts, by address.
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The one that is tried, or connected."""
        return self.addresses[self.place]


class ContactBook:
    """All contacts of a peer, and what to do about them."""

    def __init__(self, timing: DialTiming, own: int, rng: random.Random) -> None:
        self._timing = timing
        self._own = own
        self._random = rng
        self._contacts: dict[int | str, Contact] = {}
        self.full = 0  #: contacts not taken for want of room
        self.held = 0  #: contacts that were not dialled the last time, for want of room

    def __len__(self) -> int:
        return len(self._contacts)

    # --- what is told ---

    def learn(
        self, instance: int, name: str, addresses: tuple[str, ...], source: str, *, now: float
    ) -> float:
        """Somebody told of a peer; returns when there is something to do about it."""
        if instance == self._own or not addresses:
            return NEVER
        contact = self._contacts.get(instance)
        if contact is None:
            if not self._has_room(source):
                return NEVER
            wait = 0.0 if self._own < instance else self._timing.wait_s
            contact = Contact(addresses[:ADDRESSES_MAX], instance, name, due=now + wait)
            self._contacts[instance] = contact
        contact.sources[source] = now
        if contact.state != "waiting":
            return NEVER
        self._set_addresses(contact, addresses)
        return contact.due

    def seed(self, address: str, source: str, *, now: float, forever: bool = False) -> None:
        """An address at which somebody may be."""
        contact = self._contacts.get(address)
        if contact is None:
            if not self._has_room(source):
                return
            contact = Contact((address,), due=now, is_seed=forever)
            self._contacts[address] = contact
        contact.sources[source] = now

    def withdraw(self, instance: int, source: str) -> None:
        """A source says that the peer has gone: it may be wrong, but does not vouch for it."""
        contact = self._contacts.get(instance)
        if contact is not None:
            contact.sources.pop(source, None)
            if not contact.sources and contact.state == "waiting":
                del self._contacts[instance]

    def drop(self, key: int | str) -> None:
        """There is nobody there for us: it is ourselves."""
        self._contacts.pop(key, None)

    def _has_room(self, source: str) -> bool:
        if len(self._contacts) < CONTACTS_MAX:
            return True
        self.full += 1
        if source == ANYBODY:
            return False
        idle = (
            key
            for key, contact in self._contacts.items()
            if contact.state == "waiting"
            and not contact.is_seed
            and {*contact.sources} <= {ANYBODY}
        )
        key = next(idle, None)
        return key is not None and self._contacts.pop(key) is not None

    def _set_addresses(self, contact: Contact, addresses: tuple[str, ...]) -> None:
        """New ones are tried at once."""
        if set(addresses) <= set(contact.addresses):
            return
        fresh = [a for a in addresses if a not in contact.addresses]
        contact.addresses = (*fresh, *contact.addresses)[:ADDRESSES_MAX]
        contact.place = 0

    # --- how it went ---

    def at(self, address: str) -> list[Contact]:
        """Contacts for which this address is being tried or connected."""
        return [c for c in self._contacts.values() if c.state != "waiting" and c.address == address]

    def sources(self, instance: int) -> Container[str]:
        """Return who told of a peer."""
        contact = self._contacts.get(instance)
        return () if contact is None else contact.sources

    def having(self, address: str) -> list[Contact]:
        """Contacts that have this address, in whatever state."""
        return [c for c in self._contacts.values() if address in c.addresses]

    def adopt(self, instance: int, name: str, address: str, *, now: float) -> None:
        """The peer is being dialled there already."""
        self.learn(instance, name, (address,), "met", now=now)
        contact = self._contacts.get(instance)
        if contact is not None and contact.state == "waiting":
            self._set_addresses(contact, (address,))
            contact.place = contact.addresses.index(address)
            contact.state, contact.due = "dialling", now + self._timing.attempt_s

    def on_up(self, address: str, instance: int, name: str, *, now: float) -> None:
        """A peer answered there."""
        for contact in self.at(address):
            contact.state, contact.due, contact.tries = "up", NEVER, 0
            contact.reason = ""
            contact.reasons.pop(address, None)
            contact.name = name
            if contact.is_seed or contact.instance is None:
                contact.instance = instance

    def on_same(self, address: str, instance: int, *, now: float) -> None:
        """Who answered there is connected already."""
        for contact in self.at(address):
            if contact.instance in (None, instance) or contact.is_seed:
                contact.instance = instance
                self._wait(contact, now + self._timing.retry_max_s)
            else:
                self._fail(contact, "another peer answers there", now)

    def on_down(self, address: str, *, now: float) -> None:
        """The connection broke; it is being dialled again."""
        for contact in self.at(address):
            if contact.state == "up":
                contact.state, contact.due = "down", now + self._timing.keep_s

    def on_left(self, address: str, *, now: float) -> None:
        """The peer said good-bye."""
        for contact in self.at(address):
            self._end(contact, "it left", now)

    def on_failed(self, address: str, reason: str, *, now: float) -> None:
        """It did not work out."""
        for contact in self.at(address):
            self._fail(contact, reason, now)

    def on_put_off(self, address: str, reason: str, *, now: float) -> None:
        """It is there, and may be ready for us at any time: ask again, without growing pauses."""
        for contact in self.at(address):
            contact.reason = contact.reasons[address] = reason
            self._wait(contact, now + self._timing.put_off_s)

    def _fail(self, contact: Contact, reason: str, now: float) -> None:
        contact.reason = contact.reasons[contact.address] = reason
        if contact.place + 1 < len(contact.addresses):
            contact.place += 1
            self._wait(contact, now)
        else:
            contact.place = 0
            contact.tries += 1
            self._wait(contact, now + self._pause_s(contact.tries))

    def _pause_s(self, tries: int) -> float:
        pause = self._timing.retry_min_s * 2.0 ** min(tries - 1, 16)
        return min(pause, self._timing.retry_max_s) * self._random.uniform(0.75, 1.25)

    @staticmethod
    def _wait(contact: Contact, due: float) -> None:
        contact.state, contact.due = "waiting", due

    def _end(self, contact: Contact, reason: str, now: float) -> None:
        contact.reason = contact.reasons[contact.address] = reason
        contact.tries = 1
        if contact.is_seed:
            contact.instance = None
        self._wait(contact, now + self._pause_s(1))
        contact.sources.clear()

    # --- what to do ---

    def actions(
        self,
        *,
        now: float,
        linked: Container[int],
        met: Container[int],
        room: int,
        again: float | None = None,
    ) -> tuple[list[str], list[tuple[str, str]]]:
        """Addresses to dial, and those to give up, with the reason.

        `linked` are the peers that we dialled and that answered, `met` those that dialled us;
        `room` says how many more may be connected.  Those who are here are looked at together,
        `again` at that time: each by its own clock, many would mean a look every few milliseconds.
        """
        self._forget(now, linked, met)
        given_up: list[tuple[str, str]] = []
        for contact in self._contacts.values():
            if contact.due <= now and contact.state == "dialling":
                given_up.append((contact.address, f"no answer in {self._timing.attempt_s:g} s"))
            elif contact.due <= now and contact.state == "down":
                given_up.append((contact.address, f"away for {self._timing.keep_s:g} s"))
        busy = sum(contact.state == "dialling" for contact in self._contacts.values())
        dials: list[str] = []
        self.held = 0
        for contact in self._contacts.values():
            if contact.state != "waiting" or contact.due > now:
                continue
            if contact.instance is not None and (
                contact.instance in linked or contact.instance in met
            ):
                contact.tries = 0
                contact.due = now + self._timing.retry_min_s if again is None else again
            elif busy >= DIALS_MAX or room <= 0:
                self.held += room <= 0
                contact.due = now + self._timing.retry_min_s
            else:
                contact.state, contact.due = "dialling", now + self._timing.attempt_s
                if contact.address not in dials:
                    dials.append(contact.address)
                    busy += 1
                    room -= 1
        return dials, given_up

    def _forget(self, now: float, linked: Container[int], met: Container[int]) -> None:
        limit = now - self._timing.forget_s
        for key, contact in list(self._contacts.items()):
            if contact.is_seed or contact.state != "waiting":
                continue
            if max(contact.sources.values(), default=-NEVER) < limit:
                del self._contacts[key]

    def deadline(self) -> float:
        """When `actions` has something to do."""
        return min((contact.due for contact in self._contacts.values()), default=NEVER)

    def report(self) -> list[dict[str, Any]]:
        """What was tried, and how it went."""
        return [
            {
                "peer": contact.name,
                "addresses": list(contact.addresses),
                "sources": sorted(contact.sources),
                "state": contact.state,
                "tries": contact.tries,
                "reason": contact.reason,
                "reasons": dict(contact.reasons),
            }
            for contact in list(self._contacts.values())
        ]
