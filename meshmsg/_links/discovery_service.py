"""The finder of a node: who is here, whom to dial, and what to tell of others.

Decisions are made by the three cores of `recovery.discovery`: `presence`, `contacts` and `gossip`.
This joins them to links, clients and the scout.  All of it runs on the I/O thread, but for what
says otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec.structs import replace as with_fields

from meshmsg import _platform
from meshmsg._links.inbound_peer import Client
from meshmsg._links.outbound_peer import Link, LinkTable
from meshmsg._links.resolver import Name, Scout
from meshmsg._model.config import PeerConfig
from meshmsg._model.discovery_config import DEFAULT_MESH, Discovery
from meshmsg._model.errors import ConfigError, ProtocolError
from meshmsg._model.message_fields import CONTACT_ADDRESSES_MAX, CONTACTS_MAX
from meshmsg._model.units import check_name
from meshmsg._peer.presence import PeerInfo, PresenceHub
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.guard import Guard
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._runtime.turns import next_beat
from meshmsg._wire import control as c
from meshmsg.recovery.discovery.contacts import NEVER, ContactBook, DialTiming
from meshmsg.recovery.discovery.gossip import Rumours
from meshmsg.recovery.discovery.presence import Card, Change, MemberBook
from meshmsg.transports.discovery.addresses import (
    concrete,
    folder_scope,
    is_host,
    is_ip,
    is_loopback,
    join_target,
    split_target,
)
from meshmsg.transports.discovery.mdns import Service

log = logging.getLogger("meshmsg.discovery")

#: How often what zeroconf and names gave is taken up again: contacts that failed may be back.
RENEW_S = 10.0
ITSELF = "a peer does not connect to itself"
#: Of our own card: with some contacts it has to fit a message.
CARD_BYTES = 48 * 1024


class Doings(NamedTuple):
    """What a peer does in the mesh, as its card says."""

    streams: tuple[str, ...]
    groups: tuple[str, ...]
    roles: tuple[str, ...]


class Finder:
    """Discovery and presence of one peer."""

    def __init__(
        self,
        config: PeerConfig,
        instance: int,
        software: str,
        control: ControlSender,
        addresses: Sequence[str],
        table: LinkTable,
        clients: dict[bytes, Client],
        doings: Callable[[], Doings],
        dial: Callable[[str], None],
        drop: Callable[[Link], None],
        call: Callable[[Callable[[], None]], None],
    ) -> None:
        found = config.discovery or Discovery()
        self._config = config
        self._instance = instance
        self._software = software
        self._control = control
        self._counters = control.counters
        self._bound = addresses  # where we listen, as soon as we do
        self._table = table
        self._clients = clients
        self._doings = doings
        self._dial_found = dial
        self._drop = drop  # gives up a link
        self._call = call  # runs something on the I/O thread
        self._found = found
        self.is_on = found.is_on
        self._notes = LogLimit(log, self._counters)
        self.hub = PresenceHub(config.name, self._counters)
        self.book = MemberBook(config.tuning.peer_timeout_s, config.tuning.ping_interval_s)
        timing = DialTiming(
            attempt_s=float(found.dial_timeout),
            retry_max_s=float(found.retry_max),
            forget_s=float(found.forget_after),
        )
        chance = _platform.new_random()
        self.contacts = ContactBook(timing, instance, chance)
        self._rumours = Rumours(CONTACTS_MAX, chance)
        # A mesh without a name is that of a user and folder; who has a key was told of the others.
        named = config.mesh != DEFAULT_MESH or config.security is not None
        self._scope = "" if named else folder_scope()
        self._scout: Scout | None = None
        self._addresses: tuple[str, ...] = ()
        self._wide = False  # whether peers beyond this machine are dialled
        self._card = Card(config.name, instance)
        self._due = self._ping_due = self._renew_due = 0.0

    # --- life ---

    def open(self) -> None:
        """The sockets are bound: begin to look."""
        config = self._config
        own = [a for address in self._bound for a in concrete(address)]
        self._addresses = tuple(self._found.advertise or own)[:CONTACT_ADDRESSES_MAX]
        self._card = self._describe(1)
        told = (*own, *config.connect, *self._found.seeds, *self._found.advertise)
        targets = [target for a in told if (target := split_target(a)) is not None]
        self._wide = any(not is_loopback(target.host) for target in targets)
        if self.is_on:
            self._look()

    def _look(self) -> None:
        config = self._config
        now = _platform.monotonic()
        names = []
        for address in (*self._found.seeds, *config.connect):
            target = split_target(address)
            if target is not None and not is_ip(target.host) and target.host != "localhost":
                names.append(Name(target.host, target.port))
            elif address in self._found.seeds and not self._is_own(address):
                self.contacts.seed(address, "seed", now=now, forever=True)
        told = config.connect or config.feeds or self._found.seeds
        zeroconf = not told if self._found.zeroconf is None else self._found.zeroconf
        call = self._call
        self._scout = Scout(
            config,
            self._instance,
            self._addresses,
            names,
            scope=self._scope,
            zeroconf=zeroconf,
            on_service=lambda there, s: call(lambda: self._on_service(there, s)),
            on_name=lambda name: call(lambda: self._on_name(name)),
            on_reason=lambda address, why: call(lambda: self._on_reason(address, why)),
            counters=self._counters,
        )
        if zeroconf or names:
            self._scout.start()

    def guards(self) -> list[Guard]:
        """What looks after the scout's thread, if there is one."""
        return [] if self._scout is None else [self._scout.guard]

    def close(self) -> None:
        """Stop looking; iterators over changes end."""
        if self._scout is not None:
            self._scout.close()
        self.hub.close()

    # --- what the scout brings ---

    def _on_service(self, there: bool, service: Service) -> None:
        records = service.records
        try:
            instance = int(records.get("id", ""), 16)
            name = check_name("peer", records.get("peer", ""))  # anybody may have written it
        except (ValueError, ConfigError):
            self._counters["strange_services"] += 1
            return
        scout = self._scout
        if scout is None or not scout.is_ours(service) or instance == self._instance:
            return
        if not there:
            self.contacts.withdraw(instance, "zeroconf")
            return
        heard_on = scout.zeroconf.get("interfaces", [])
        teller = next(filter(is_loopback, heard_on), "beyond this machine")
        addresses = self._usable(service.targets, teller)
        self._learn(instance, name, addresses, "zeroconf")

    def _on_name(self, name: Name) -> None:
        now = _platform.monotonic()
        for host in name.addresses:
            address = join_target(host, name.port)
            if not self._is_own(address):
                self.contacts.seed(address, f"name {name.host}", now=now)
        self._due = now

    def _on_reason(self, address: str, why: str) -> None:
        """The scout knows better than `no answer`."""
        for contact in self.contacts.having(address):
            if why and contact.reasons.get(address) != why:
                contact.reason = contact.reasons[address] = why
                level = logging.WARNING if contact.is_seed else logging.INFO
                who = contact.name or "a peer"
                text = "%s cannot be reached at %s: %s"
                self._notes.write(level, text, who, address, why)

    def _learn(self, instance: int, name: str, addresses: tuple[str, ...], source: str) -> None:
        now = _platform.monotonic()
        due = self.contacts.learn(instance, name, addresses, source, now=now)
        self._due = min(self._due, due)

    def _usable(self, addresses: tuple[str, ...] | list[str], teller: str) -> tuple[str, ...]:
        """Of addresses that somebody told us, those that we may dial.

        Only numbers, so that nobody has us look up names, and only of single hosts; loopback only
        if the teller is on this machine (where "" is ipc), and the network only if we were told to
        go beyond loopback.
        """
        local = not teller or is_loopback(teller)
        good = []
        for address in addresses:
            target = split_target(address)
            if target is None:
                continue
            if not is_host(target.host):
                self._counters["strange_addresses"] += 1
            elif is_loopback(target.host):
                good += [address] if local else []
            elif self._wide:
                good.append(address)
        return tuple(good)

    def _is_own(self, address: str) -> bool:
        return address in self._addresses or address in self._bound

    # --- what other peers say ---

    def greet(self, target: Link | bytes, instance: int) -> None:
        """A connection is up: say who we are and whom we know."""
        self._say(target, self._known(instance))

    def on_here(self, instance: int, host: str, here: c.Here) -> None:
        """A peer says who it is and whom it knows."""
        if here.instance != instance:
            raise ProtocolError("somebody else's card")
        now = _platform.monotonic()
        addresses = self._usable(_observed(here.addresses, host), host)
        card = Card(
            here.peer,
            here.instance,
            here.serial,
            addresses,
            tuple(here.streams),
            tuple(here.groups),
            tuple(here.roles),
            here.software,
            c.PROTOCOL_VERSION,
        )
        change = self.book.here(card, now=now)
        self._counters["cards_shortened"] = self.book.shortened
        if change is not None:
            self._tell(change)
            if change.kind == "joined":
                self._rumours.joined(instance)
                self._tell_how(instance, here.peer)
        if not self.is_on:
            return
        self._learn(instance, here.peer, addresses, "met")
        if self._found.gossip:
            for contact in here.known:
                told = self._usable(contact.addresses, host)
                self._learn(contact.instance, contact.peer, told, "gossip")

    def _tell_how(self, instance: int, name: str) -> None:
        """Say once of a peer that nobody named how it was found."""
        sources = self.contacts.sources(instance)
        if "zeroconf" in sources:
            whose = "mesh and folder" if self._scope else "mesh"
            log.info("found %s of this %s by zeroconf", name, whose)
        elif "gossip" in sources:
            log.info("found %s by what other peers know", name)

    def on_bye(self, instance: int) -> None:
        """A peer leaves."""
        change = self.book.left(instance)
        if change is not None:
            self._tell(change)
        self.contacts.drop(instance)
        for link in self._table.all():
            # Said on the connection that it made; the one that we made broke before.
            if link.found and link.instance == instance and link.state in ("dialling", "greeting"):
                self._drop(link)

    def on_welcome(self, link: Link) -> None:
        """A peer that we dialled has answered."""
        now = _platform.monotonic()
        self.contacts.on_up(link.address, link.instance, link.peer, now=now)
        link.noted = "up"
        for other in self._table.all():
            old = other.found and other.state != "up" and other.instance != link.instance
            if old and other.peer == link.peer:  # it was started anew, elsewhere
                self._drop(other)
                self.contacts.on_left(other.address, now=now)
        self.greet(link, link.instance)

    def told_of(self, addresses: list[str], host: str) -> tuple[str, ...]:
        """Return the addresses of a peer that somebody told us, as far as we may dial them."""
        local = not host or is_loopback(host)
        ipc = [address for address in addresses if local and address.startswith("ipc://")]
        return (*ipc, *self._usable(addresses, host))

    def own_addresses(self) -> list[str]:
        """Return where others are told that we listen."""
        return list(self._addresses or self._bound)[:CONTACT_ADDRESSES_MAX]

    def where(self, link: Link) -> list[str]:
        """Return the addresses of a peer that we dialled: there, and as it says."""
        member = self.book.members.get(link.instance)
        told = () if member is None else member.card.addresses
        return list(dict.fromkeys((link.address, *told)))[:CONTACT_ADDRESSES_MAX]

    def on_same(self, address: str, instance: int) -> None:
        """Two addresses of one peer."""
        self.contacts.on_same(address, instance, now=_platform.monotonic())

    def adopt(self, link: Link, instance: int, name: str) -> None:
        """A peer with streams dialled us, and is dialled back."""
        if self.is_on:
            link.found = True
            self.contacts.adopt(instance, name, link.address, now=_platform.monotonic())

    def _tell(self, change: Change) -> None:
        card = change.card
        if change.kind != "changed":
            kind = "was lost" if change.kind == "lost" else change.kind
            self._notes.info("%s %s", card.peer, kind)
        self.hub.tell(change.kind, card)

    # --- time ---

    def on_tick(self, now: float) -> float:
        """Whatever is due; returns when to come again."""
        if now >= self._ping_due:
            self._ping_due = next_beat(now, self._config.tuning.ping_interval_s)
            self._on_ping(now)
        if self.is_on and now >= self._due:
            self._dial(now)
            self._due = max(self.contacts.deadline(), now + 0.02)
        return min(self._ping_due, self._due if self.is_on else NEVER)

    def _on_ping(self, now: float) -> None:
        connections: list[Link | Client] = [*self._table.up(), *self._clients.values()]
        for connection in connections:
            back = self.book.heard(connection.instance, connection.last_seen)
            if back is not None:
                self._tell(back)
        for change in self.book.on_tick(now=now):
            self._tell(change)
        card = self._describe(self._card.serial + 1)
        if card != replace(self._card, serial=card.serial):
            self._card = card
            for target in self._targets().values():
                self._say(target, [])
        if self.is_on:
            self._note_links(now)
            self._spread(now)
            if now >= self._renew_due:
                self._renew_due = now + RENEW_S
                self._renew()

    def _describe(self, serial: int) -> Card:
        streams, groups, roles = self._doings()
        name, addresses = self._config.name, self._addresses
        card = Card(name, self._instance, serial, addresses, streams, groups, roles)
        return card.shortened(CARD_BYTES)

    def _spread(self, now: float) -> None:
        """Tell of others."""
        if self._found.gossip:
            targets = self._targets()
            here = list(self.book.members)
            for instance, told in self._rumours.round(here, list(targets), now=now):
                self._say(targets[instance], self._contacts_of(told))

    def _known(self, receiver: int) -> list[c.Contact]:
        if not self._found.gossip:
            return []
        return self._contacts_of(self._rumours.known(self.book.members, receiver))

    def _contacts_of(self, instances: list[int]) -> list[c.Contact]:
        cards = [m.card for i in instances if (m := self.book.members.get(i)) is not None]
        return [
            c.Contact(card.peer, card.instance, list(card.addresses))
            for card in cards[:CONTACTS_MAX]
            if card.addresses
        ]

    def _say(self, target: Link | bytes, known: list[c.Contact]) -> None:
        card = self._card
        here = c.Here(
            peer=card.peer,
            instance=card.instance,
            serial=card.serial,
            addresses=list(card.addresses),
            streams=list(card.streams),
            groups=list(card.groups),
            roles=list(card.roles),
            software=self._software,
        )
        self._control.post_pages(target, lambda some, _: with_fields(here, known=some), known)

    def _targets(self) -> dict[int, Link | bytes]:
        """A connection to each peer, whoever dialled."""
        targets: dict[int, Link | bytes] = {
            client.instance: identity for identity, client in list(self._clients.items())
        }
        for link in self._table.up():
            targets[link.instance] = link
        return targets

    # --- dialling ---

    def _note_links(self, now: float) -> None:
        """What became of the links that were found."""
        for link in self._table.all():
            if not link.found or link.state == link.noted:
                continue
            was, link.noted = link.noted, link.state
            if link.state == "dialling":
                self.contacts.on_down(link.address, now=now)
                if was == "up" and not self.contacts.at(link.address):
                    self._drop(link)  # it has left, as it said by another connection
            elif link.state == "left":
                self.contacts.on_left(link.address, now=now)
                self._drop(link)
            elif link.state == "refused":
                self._refused(link, now)

    def _refused(self, link: Link, now: float) -> None:
        if link.reason == ITSELF:
            self.contacts.drop(link.address)
        elif any(
            x.reasons.get(link.address) != link.reason for x in self.contacts.at(link.address)
        ):
            self._notes.warning("%s: %s", link.address, link.reason)
        if link.taken:
            self.contacts.on_put_off(link.address, link.reason, now=now)
        else:
            self.contacts.on_failed(link.address, link.reason, now=now)
        self._drop(link)

    def _dial(self, now: float) -> None:
        linked = {link.instance for link in self._table.up()}
        clients = {client.instance for client in self._clients.values()}
        met = {instance for instance in clients if not self._serves(instance)}
        room = self._found.peers_max - len(linked | clients)
        dials, given_up = self.contacts.actions(
            now=now, linked=linked, met=met, room=room, again=self._ping_due
        )
        if room <= 0 and self.contacts.held:
            self._counters["peers_full"] += self.contacts.held
        for address, reason in given_up:
            link = self._table.by_address.get(address)
            if link is not None and link.found and link.state != "up":
                self._drop(link)
            self.contacts.on_failed(address, reason, now=now)
            if self._scout is not None and self._scout.is_running:
                self._scout.ask_why(address)
            else:
                log.info("%s: %s", address, reason)
        for address in dials:
            self._dial_one(address, now)

    def _serves(self, instance: int) -> bool:
        """Whether a subscription of ours might want something of it, so that it is dialled."""
        member = self.book.members.get(instance)
        return member is not None and bool(member.card.streams or "recorder" in member.card.roles)

    def _dial_one(self, address: str, now: float) -> None:
        link = self._table.by_address.get(address)
        if link is not None:  # dialled by other means
            if link.state == "up":
                self.contacts.on_up(address, link.instance, link.peer, now=now)
            return
        try:
            self._dial_found(address)
        except Exception as error:  # too many open files, an address ZeroMQ does not take
            self._counters["dial_errors"] += 1
            self._notes.warning("%s cannot be dialled: %s", address, error, key=str(error))
            self.contacts.on_failed(address, str(error), now=now)

    def _renew(self) -> None:
        if self._scout is not None:
            for service in self._scout.known():
                self._on_service(True, service)

    # --- any thread ---

    def peers(self) -> list[PeerInfo]:
        """Who is here."""
        return self.hub.peers()

    def connected(self) -> int:
        """How many peers there is a connection with."""
        return len(self._targets())

    def questioned(self) -> dict[str, Link | bytes]:
        """A connection to each peer, by its address; by its name where it has told none."""
        found: dict[str, Link | bytes] = {}
        names = {info.instance: info for info in self.peers()}
        for instance, target in self._targets().items():
            info = names.get(instance)
            if not isinstance(target, bytes):
                found[target.address] = target
            elif info is not None:
                found[info.addresses[0] if info.addresses else info.name] = target
        return found

    def forgive(self, slept_s: float) -> None:
        """This process did not run for a while."""
        self.book.forgive(slept_s)

    def stats(self) -> dict[str, Any]:
        """What was tried to find others, and how it went."""
        scout = self._scout
        return {
            "zeroconf": {"state": "off", "reason": ""} if scout is None else dict(scout.zeroconf),
            "elsewhere": [
                {"peer": s.records.get("peer", ""), "addresses": list(s.targets)}
                for s in ([] if scout is None else scout.elsewhere())
            ],
            "gossip": self._found.gossip,
            "names": [
                {"host": name.host, "addresses": list(name.addresses), "reason": name.reason}
                for name in ([] if scout is None else scout.names)
            ],
            "contacts": self.contacts.report(),
        }


def _observed(addresses: list[str], host: str) -> list[str]:
    """Where a peer says it listens, and the host that it is seen to come from."""
    targets = [target for address in addresses if (target := split_target(address)) is not None]
    if not host or not is_ip(host) or any(target.host == host for target in targets):
        return addresses
    seen = dict.fromkeys(join_target(host, target.port) for target in targets)
    return [*list(seen)[:4], *addresses][:CONTACT_ADDRESSES_MAX]
