"""A mesh for users' tests: no socket, no sleep, and whatever can go wrong."""

from collections.abc import Iterator

import pytest

from meshmsg import ClosedError, Peer, Stream
from meshmsg._model.errors import ConfigError, LogError, WaitTimeout
from meshmsg.testing.memory_mesh import MemoryMesh

ADDRESS = "tcp://127.0.0.1:5000"
DURABLE = Stream("orders.**", durability="log", fsync="always", segment_bytes="64KiB")


@pytest.fixture
def mesh() -> Iterator[MemoryMesh]:
    with MemoryMesh(seed=7) as one:
        yield one


def shop() -> Peer:
    return Peer("shop", streams=[DURABLE], data_dir="data", bind=ADDRESS)


def numbers(events: object, count: int) -> list[int]:
    got = [events.get(timeout=30) for _ in range(count)]  # type: ignore[attr-defined]
    return [event.data for event in got if event is not None]


def test_tasks_run_beside_the_test_on_a_clock_that_jumps(mesh: MemoryMesh) -> None:
    with Peer("shop") as one, Peer("billing", connect=one.address) as other:
        seen: list[int] = []

        def serve() -> None:
            with other.subscribe("orders.**") as events:
                seen.extend(event.data for event in [events.get(timeout=60)] if event)

        task = mesh.start(serve, on="billing")
        one.wait_for_subscribers("orders.new", count=1, timeout=5)
        mesh.sleep(30)
        one.publish("orders.new", 1)
        mesh.wait_until(lambda: seen == [1])
        task.join()
        assert mesh.now >= 30
        with pytest.raises(WaitTimeout):
            mesh.wait_until(lambda: False, timeout=3)


@pytest.mark.parametrize("power", [False, True])
def test_killed_peer_comes_back_with_its_disk(mesh: MemoryMesh, power: bool) -> None:
    one = shop().open()
    with (
        Peer("billing", connect=ADDRESS) as billing,
        billing.subscribe("orders.**", start="earliest") as events,
    ):
        for n in range(20):
            one.publish("orders.new", n)
        mesh.kill("shop", power=power)
        with pytest.raises(ClosedError, match="killed"):
            one.publish("orders.new", 99)
        one.close()
        with shop() as again:
            again.publish("orders.new", 20)
            assert numbers(events, 21) == list(range(21))
            assert events.lost == 0


def test_peer_without_its_disk_says_what_is_lost(mesh: MemoryMesh) -> None:
    one = shop().open()
    with (
        Peer("billing", connect=ADDRESS) as billing,
        billing.subscribe("orders.**") as events,
    ):
        one.wait_for_subscribers("orders.new", count=1, timeout=5)
        mesh.cut("shop", "billing")
        one.publish("orders.new", 0)
        mesh.kill("shop", power=True, disk=False)
        mesh.heal()
        with shop() as again:
            again.wait_for_subscribers("orders.new", count=1, timeout=60)
            again.publish("orders.new", 1)
            assert numbers(events, 1) == [1]


def test_lost_connections_cost_time_and_no_events(mesh: MemoryMesh) -> None:
    with (
        Peer("shop") as one,
        Peer("billing", connect=one.address) as other,
        other.subscribe("orders.**") as events,
    ):
        one.wait_for_subscribers("orders.new", count=1, timeout=5)
        for n in range(100):
            one.publish("orders.new", n)
            if n % 20 == 10:
                assert mesh.drop_connections("billing") > 0
            mesh.sleep(0.01)
        assert numbers(events, 100) == list(range(100))


def test_full_disk_is_an_error_and_gives_way_again(mesh: MemoryMesh) -> None:
    with shop() as one:
        one.publish("orders.new", 0)
        mesh.disk("shop").sync_error = 1.0
        with pytest.raises((LogError, WaitTimeout)):
            one.publish("orders.new", 1, timeout=5)
        mesh.disk("shop").sync_error = 0.0
        mesh.wait_until(lambda: one.publish("orders.new", 2, timeout=60) is not None)


def test_links_are_slow_each_way_apart(mesh: MemoryMesh) -> None:
    with (
        Peer("shop") as one,
        Peer("billing", connect=one.address) as other,
        other.subscribe("orders.**") as events,
    ):
        one.wait_for_subscribers("orders.new", count=1, timeout=5)
        mesh.link("shop", "billing").delay_s = 2.0
        sent = mesh.now
        one.publish("orders.new", 1)
        assert numbers(events, 1) == [1]
        assert 2.0 <= mesh.now - sent < 3.0


def test_what_fails_in_a_task_fails_the_test() -> None:
    def run() -> None:
        with MemoryMesh() as mesh:
            mesh.start(lambda: 1 / 0, on="box")
            mesh.sleep(1)

    with pytest.raises(ZeroDivisionError):
        run()


def test_wrong_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="loss"):
        MemoryMesh(loss=2)
    with MemoryMesh() as mesh, pytest.raises(ConfigError, match="has not been here"):
        mesh.kill("nobody")
