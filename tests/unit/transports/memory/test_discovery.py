"""Zeroconf in a simulated world."""

from meshmsg.transports.discovery.mdns import Service
from meshmsg.transports.memory.discovery import Beacon
from meshmsg.transports.memory.platform import MemoryPlatform


def test_peers_hear_who_is_there_who_comes_and_who_goes() -> None:
    world = MemoryPlatform()
    heard: list[tuple[str, bool, str]] = []

    def listener(who: str) -> Beacon:
        def hear(there: bool, service: Service) -> None:
            heard.append((who, there, service.records["peer"]))

        return Beacon(world.machine(who), hear)

    a = listener("a")
    a.announce("a-1", ("127.0.0.1",), 1, {"peer": "a"})
    world.sleep(2)
    heard.clear()
    b = listener("b")
    world.sleep(2)
    assert heard == [("b", True, "a")]
    assert [service.port for service in b.known()] == [1]
    a.close()
    world.sleep(2)
    assert heard == [("b", True, "a"), ("b", False, "a")]
    assert b.known() == []


def test_cut_network_and_dead_machine_hear_nothing() -> None:
    world = MemoryPlatform()
    heard: list[bool] = []
    world.network.own_way("a", "b").is_cut = True
    Beacon(world.machine("b"), lambda there, service: heard.append(there))
    Beacon(world.machine("c"), lambda there, service: heard.append(there))
    world.kill("c")
    Beacon(world.machine("a"), lambda there, service: None).announce("a-1", ("h",), 1, {})
    world.sleep(2)
    assert heard == []
