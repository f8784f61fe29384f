"""Peers that find each other by gossip, in simulated worlds: joins, kills, partitions, sleep."""

from __future__ import annotations

import pytest

from tests.simulation.discovery.world import INTERVAL_S, Options, World

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_fifty_peers_that_know_one_seed_find_all_others(seed: int) -> None:
    world = World(Options(seed, peers=50))
    took = world.run_until_complete(30.0)
    assert took < 15.0, world.options
    assert not any(peer.lost for peer in world.peers)


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_peers_are_lost_to_all_others_in_time_and_nobody_else(seed: int) -> None:
    world = World(Options(seed, peers=30))
    world.run_until_complete(30.0)
    killed_at = world.now
    world.kill(list(range(20, 30)))
    took = world.run_until_complete(20.0)
    assert took <= world.options.timeout_s + 2 * INTERVAL_S + 0.1
    dead = {world.peers[number].instance for number in range(20, 30)}
    for peer in world.peers[:20]:
        assert {instance for _, instance in peer.lost} == dead, world.options
        assert all(at - killed_at > world.options.timeout_s - 1.0 for at, _ in peer.lost)


def test_nobody_brings_the_dead_back_and_they_are_forgotten() -> None:
    world = World(Options(3, peers=12))
    world.run_until_complete(30.0)
    world.kill([9, 10, 11])
    world.run(300.0)
    assert world.complete()
    for peer in world.peers[1:9]:
        assert len(peer.contacts) <= 9  # the others, and the seed once more


@pytest.mark.parametrize("seed", SEEDS)
def test_partition_and_healing(seed: int) -> None:
    world = World(Options(seed, peers=20, seeds=2))
    world.run_until_complete(30.0)
    world.split(10)
    world.run(10.0)
    assert world.complete(), "each side knows its own"
    world.heal()
    took = world.run_until_complete(40.0)
    assert took < 40.0


@pytest.mark.parametrize("seed", SEEDS)
def test_healing_after_everybody_was_forgotten_needs_the_seeds(seed: int) -> None:
    world = World(Options(seed, peers=12, seeds=1))
    world.run_until_complete(30.0)
    world.split(6)
    world.run(400.0)  # much longer than contacts are kept
    assert world.complete()
    world.heal()
    world.run_until_complete(60.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_processes_that_sleep_shorter_than_the_timeout_raise_no_alarm(seed: int) -> None:
    """As under load: everybody stops now and then, for up to three of five seconds."""
    world = World(Options(seed, peers=15, sleep_chance=0.05, sleep_max_s=3.0))
    world.run(120.0)
    assert not any(peer.lost for peer in world.peers), world.options
    world.run_until_complete(30.0)


def test_same_seed_same_world() -> None:
    worlds = [World(Options(5, peers=15, sleep_chance=0.02)) for _ in range(2)]
    times = [world.run_until_complete(60.0) for world in worlds]
    assert times[0] == times[1]
