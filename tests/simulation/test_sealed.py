"""The multicast simulation with every packet sealed, keys that change under way, and an attacker.

The attacker hears and says what it likes to every receiver and to the sender: it repeats what it
heard, changes it, and sends it in the clear.  The invariants are those of the simulation without
seals; and nothing that the attacker says comes through.
"""

from __future__ import annotations

import os
import random
from typing import Any
from unittest import mock

import pytest

from meshmsg._wire.packet import CONFIRM, DATA, HEARTBEAT, NACK, PARITY, REPAIR, SEAL_BYTES, STATUS
from meshmsg.recovery.multicast.packet_receiver import PacketReceiver
from meshmsg.recovery.multicast.seal import Opener, Sealer
from meshmsg.recovery.multicast.seal_keys import SealKeys
from tests.simulation.multicast import world as world_module
from tests.simulation.multicast.network import Path
from tests.simulation.multicast.publisher import Publisher
from tests.simulation.multicast.receiver import Receiver
from tests.simulation.multicast.world import MulticastWorld, simulate
from tests.simulation.options import WIRE_ID as STREAM

SEEDS = int(os.environ.get("SEALED_SEEDS", "25"))
ROTATE_S = 0.3


def key_of(generation: int) -> bytes:
    return generation.to_bytes(4, "big") * 8


def keys(*, follows: bool = True) -> SealKeys:
    return SealKeys(lambda g: (key_of(g),), overlap_s=0.2, follows=follows)


class SealedPublisher(Publisher):
    def __init__(self, world: MulticastWorld, **more: Any) -> None:
        super().__init__(world, **more)
        self.sealer = Sealer(STREAM, 1 << 32 | self.epoch)
        self.opener = Opener(STREAM, keys(follows=False), (NACK, STATUS))
        self.wire = b""

    def pump(self) -> None:
        generation = int(self.world.clock.now / ROTATE_S)
        if generation != self.opener.keys.generation:
            self.sealer.use(generation, key_of(generation))
            self.opener.begin(generation, now=self.world.clock.now)
            self.world.counters["generations"] += 1
        super().pump()

    def multicast(self, data: bytes, size: int, line: int, path: Path) -> None:
        if line == 0:  # the others carry the same
            self.wire = bytes(self.sealer.seal(data, size))
        super().multicast(self.wire, size + SEAL_BYTES, line, path)

    def on_datagram(self, data: bytes, source: int) -> None:
        if not self.alive:
            return
        now = self.world.clock.now
        opened = self.opener.open(data, len(data), now=now)
        assert not self.opener.open(data, len(data), now=now)  # and again, by the attacker
        if opened:
            super().on_datagram(opened, source)


class SealedReceiver(Receiver):
    def __init__(self, world: MulticastWorld, sub: int, **more: Any) -> None:
        super().__init__(world, sub, **more)
        self.attacker = random.Random(f"{world.seed} {sub}")
        lines = world.options.lines
        self.opener = Opener(
            STREAM, keys(), (DATA, REPAIR, HEARTBEAT, CONFIRM, PARITY), lines=lines
        )
        self.sealer = Sealer(STREAM, sub)
        self.used = -1
        self.heard: list[tuple[bytes, int, int]] = []

    def on_packets(
        self, packets: PacketReceiver, data: bytes, size: int, line: int, now: float
    ) -> None:
        if not self.opener.keys.good()[0] >= 0:
            self.opener.keys.expect(int(now / ROTATE_S))
        self.attack(data, size, line, now)
        opened = self.opener.open(data, size, now=now, line=line)
        if opened:
            super().on_packets(packets, opened, size - SEAL_BYTES, line, now)

    def attack(self, data: bytes, size: int, line: int, now: float) -> None:
        rng, counters = self.attacker, self.world.counters
        if rng.random() < 0.3:
            bad = bytearray(data[:size])
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            for wire in (bytes(bad), bad[: rng.randrange(len(bad))], b"MMP1" + data[4:size]):
                assert not self.opener.open(bytes(wire), size, now=now, line=line)
                counters["attacks"] += 1
        if self.heard and rng.random() < 0.3:
            old, old_size, old_line = rng.choice(self.heard)
            assert not self.opener.open(old, old_size, now=now, line=old_line)
            counters["attacks"] += 1
        self.heard = [*self.heard[-20:], (data, size, line)]

    def send(self, data: bytes) -> None:
        if self.opener.group_key:
            if self.used != self.opener.keys.generation:
                self.used = self.opener.keys.generation
                self.sealer.use(self.used, self.opener.group_key)
            super().send(bytes(self.sealer.seal(data, len(data))))


@pytest.mark.timeout(300)  # some seconds
def test_events_are_delivered_once_or_reported_lost_and_the_attacker_says_nothing() -> None:
    attacks = generations = nacks = 0
    with (
        mock.patch.object(world_module, "Publisher", SealedPublisher),
        mock.patch.object(world_module, "Receiver", SealedReceiver),
    ):
        for seed in range(SEEDS):
            world = simulate(seed)
            attacks += world.counters["attacks"]
            generations += world.counters["generations"]
            nacks += world.counters["nacks"]
    assert attacks > 20 * SEEDS
    assert generations > 5 * SEEDS
    assert nacks > SEEDS
