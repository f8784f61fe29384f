"""A mesh of simulated peers that find each other by gossip, in one thread under one seed.

Real: the three cores (`contacts`, `presence`, `gossip`).  Simulated: connections, delays, lost
messages' absence (TCP does not lose, it breaks), partitions, crashes, and processes that sleep.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from meshmsg.recovery.discovery.contacts import ContactBook, DialTiming
from meshmsg.recovery.discovery.gossip import Rumours
from meshmsg.recovery.discovery.presence import Card, MemberBook

INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class Options:
    """How the world is."""

    seed: int
    peers: int = 20
    seeds: int = 1
    timeout_s: float = 5.0
    delay_max_s: float = 0.05
    sleep_chance: float = 0.0
    sleep_max_s: float = 3.0


class Peer:
    """One simulated process."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.instance = world.random.getrandbits(48)
        self.name = f"p{number}"
        self.address = f"tcp://{number}"
        self.contacts = ContactBook(DialTiming(), self.instance, world.random)
        self.book = MemberBook(world.options.timeout_s, INTERVAL_S)
        self.rumours = Rumours(256, world.random)
        self.links: dict[str, int] = {}  #: address that we dialled, who answered
        self.clients: set[int] = set()
        self.heard: dict[int, float] = {}  #: unread until we are awake
        self.alive = True
        self.asleep_until = 0.0
        self.rested = False
        self.lost: list[tuple[float, int]] = []

    def connected(self) -> set[int]:
        return set(self.links.values()) | self.clients

    def tick(self) -> None:
        world = self.world
        if not self.alive:
            return
        world.after(INTERVAL_S, self.tick)
        if world.now < self.asleep_until:
            return
        rested, self.rested = self.rested, False
        if not rested and world.random.random() < world.options.sleep_chance:
            self.rested = True  # it runs for a while before it sleeps again
            self.asleep_until = world.now + world.random.uniform(0.0, world.options.sleep_max_s)
            return
        for instance, at in self.heard.items():
            self.book.heard(instance, at)
        for change in self.book.on_tick(now=world.now):
            self.lost.append((world.now, change.card.instance))
            self.clients.discard(change.card.instance)
            self._break(change.card.instance)
        here, connected = list(self.book.members), sorted(self.connected())
        for receiver, told in self.rumours.round(here, connected, now=world.now):
            self.say(receiver, told)
        for instance in connected:
            world.send(self, instance, lambda other: other.on_sign(self))
        self.dial()

    def dial(self) -> None:
        dials, given_up = self.contacts.actions(
            now=self.world.now,
            linked=set(self.links.values()),
            met=self.clients,
            room=128 - len(self.connected()),
        )
        for address, reason in given_up:
            self.contacts.on_failed(address, reason, now=self.world.now)
        for address in dials:
            self.world.connect(self, address)

    def on_link(self, other: Peer, address: str) -> None:
        if other.instance in self.links.values():
            self.contacts.on_same(address, other.instance, now=self.world.now)
            return
        self.links[address] = other.instance
        self.contacts.on_up(address, other.instance, other.name, now=self.world.now)
        self.greet(other)

    def on_client(self, other: Peer) -> None:
        self.clients.add(other.instance)
        self.greet(other)

    def greet(self, other: Peer) -> None:
        self.say(other.instance, self.rumours.known(self.book.members, other.instance))

    def say(self, receiver: int, told: list[int]) -> None:
        known = [(i, self.book.members[i].card) for i in told if i in self.book.members]
        self.world.send(self, receiver, lambda other: other.on_here(self, known))

    def on_here(self, other: Peer, known: list[tuple[int, Card]]) -> None:
        now = self.world.now
        card = Card(other.name, other.instance, 1, (other.address,))
        change = self.book.here(card, now=now)
        if change is not None:
            self.rumours.joined(other.instance)
        self.contacts.learn(other.instance, other.name, card.addresses, "met", now=now)
        for instance, told in known:
            self.contacts.learn(instance, told.peer, told.addresses, "gossip", now=now)

    def on_sign(self, other: Peer) -> None:
        self.heard[other.instance] = self.world.now

    def _break(self, instance: int) -> None:
        for address, other in list(self.links.items()):
            if other == instance:
                del self.links[address]
                self.contacts.on_down(address, now=self.world.now)
                self.contacts.on_failed(address, "lost", now=self.world.now)


class World:
    """All peers, the network, the clock."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self.side: dict[int, int] = {}
        self.peers = [Peer(self, number) for number in range(options.peers)]
        self.by_instance = {peer.instance: peer for peer in self.peers}
        for peer in self.peers:
            for number in range(options.seeds):
                if number != peer.number:
                    peer.contacts.seed(f"tcp://{number}", "seed", now=0.0, forever=True)
            self.after(self.random.uniform(0, INTERVAL_S), peer.tick)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._numbers, action))

    def run(self, seconds: float) -> None:
        stop = self.now + seconds
        while self._queue and self._queue[0][0] <= stop:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = stop

    def reaches(self, one: Peer, other: Peer) -> bool:
        same = self.side.get(one.number, 0) == self.side.get(other.number, 0)
        return same and one.alive and other.alive

    def delay(self) -> float:
        return self.random.uniform(0.0005, self.options.delay_max_s)

    def send(self, sender: Peer, to: int, deliver: Callable[[Peer], None]) -> None:
        other = self.by_instance[to]

        def arrive() -> None:
            if not self.reaches(sender, other):
                return
            if self.now < other.asleep_until:  # it lies in the socket's buffer
                self.after(other.asleep_until - self.now + 0.001, arrive)
            else:
                deliver(other)

        self.after(self.delay(), arrive)

    def connect(self, peer: Peer, address: str) -> None:
        other = self.peers[int(address.removeprefix("tcp://"))]

        def arrive() -> None:
            if self.reaches(peer, other):
                other.on_client(peer)
                peer.on_link(other, address)

        self.after(self.delay() * 2, arrive)

    def kill(self, numbers: list[int]) -> None:
        for number in numbers:
            self.peers[number].alive = False

    def split(self, number: int) -> None:
        """Peers from this number on cannot reach the others."""
        self.side = {peer.number: int(peer.number >= number) for peer in self.peers}

    def heal(self) -> None:
        self.side = {}

    def complete(self) -> bool:
        """Whether everyone alive knows exactly those that it can reach."""
        for peer in self.peers:
            if peer.alive:
                reached = {
                    p.instance for p in self.peers if p is not peer and self.reaches(peer, p)
                }
                if set(peer.book.members) != reached:
                    return False
        return True

    def run_until_complete(self, limit_s: float) -> float:
        """Seconds until everyone knows everyone; fails, with the seed, if it takes longer."""
        began = self.now
        while not self.complete():
            assert self.now - began < limit_s, f"not complete after {limit_s} s: {self.options}"
            self.run(0.1)
        return self.now - began
