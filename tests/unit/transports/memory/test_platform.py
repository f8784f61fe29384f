"""A simulated world as the platform of peers."""

import secrets

import pytest

from meshmsg import Discovery, Multicast, Peer, Security, Stream, _platform
from meshmsg.transports.memory.network import Way
from meshmsg.transports.memory.platform import MemoryPlatform


def exchange(seed: int, multicast: bool) -> list[str]:
    """One publisher and one subscriber; what was run when."""
    world = MemoryPlatform(seed, Way(loss=0.05, jitter_s=0.002, duplication=0.02))
    trace: list[str] = []
    world.scheduler.trace = trace.append
    streams = [Stream("q.**", transport=Multicast("239.1.1.1:9000") if multicast else None)]
    with (
        _platform.entered(world),
        Peer("pub", streams=streams) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("q.**") as events,
    ):
        pub.wait_for_subscribers("q.a", count=1, timeout=5)
        for n in range(200):
            pub.publish("q.a", {"n": n})
            if n % 10 == 0:
                world.sleep(0.001)
        got = [events.get(timeout=30) for _ in range(200)]
        assert [event.data["n"] for event in got if event is not None] == list(range(200))
        assert events.lost == 0
    world.close()
    assert not world.scheduler.failures
    return trace


@pytest.mark.parametrize("multicast", [False, True])
def test_whole_peers_run_alike_under_the_same_seed(multicast: bool) -> None:
    first, second, other = (exchange(seed, multicast) for seed in (5, 5, 6))
    assert first == second
    assert first != other


def test_peers_find_each_other_without_being_told_where() -> None:
    world = MemoryPlatform(2)
    with (
        _platform.entered(world),
        Peer("a", discovery=Discovery(zeroconf=True)) as a,
        Peer("b", discovery=Discovery(zeroconf=True)) as b,
        b.subscribe("q.**") as events,
    ):
        a.wait_for_subscribers("q.x", count=1, timeout=30)
        a.publish("q.x", 1)
        event = events.get(timeout=5)
        assert event is not None
        assert event.data == 1
        assert "b" in {info.name for info in a.peers()}
    world.close()
    assert not world.scheduler.failures


def test_time_of_events_is_that_of_the_world() -> None:
    world = MemoryPlatform()
    with (
        _platform.entered(world),
        Peer("a") as a,
        Peer("b", connect=a.address) as b,
        b.subscribe("q.**") as events,
    ):
        a.wait_for_subscribers("q.x", count=1, timeout=5)
        world.sleep(100)
        a.publish("q.x", 1)
        event = events.get(timeout=5)
        assert event is not None
        assert event.time == pytest.approx(1_800_000_100, abs=1)
    world.close()


def test_keys_are_not_for_a_simulated_mesh() -> None:
    world = MemoryPlatform()
    with _platform.entered(world), pytest.raises(Exception, match="no keys"):
        Peer("a", security=Security(mesh_key=secrets.token_urlsafe(32))).open()
    world.close()
