"""Whose turn it is, and what time."""

import pytest

from meshmsg.transports.memory.network import Network
from meshmsg.transports.memory.platform import MemoryPlatform
from meshmsg.transports.memory.scheduler import PATIENCE_S, Stuck


def world(seed: int = 0) -> MemoryPlatform:
    return MemoryPlatform(seed)


def test_the_clock_jumps_to_what_is_due_next_while_all_wait() -> None:
    one = world()
    seen: list[str] = []

    def wait(name: str, seconds: float) -> None:
        one.sleep(seconds)
        seen.append(f"{name} {round(one.scheduler.now)}")

    tasks = [
        one.thread(target=lambda: wait("late", 3600), name="late"),
        one.thread(target=lambda: wait("soon", 2), name="soon"),
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
        assert not task.is_alive()
    assert seen == ["soon 2", "late 3600"]
    one.close()


def test_the_seed_says_who_goes_on() -> None:
    def order(seed: int) -> str:
        one, seen = world(seed), []
        tasks = [one.thread(target=lambda n=n: seen.append(n), name=n) for n in "abcdef"]
        for task in tasks:
            task.start()
        one.sleep(1)
        one.close()
        return "".join(seen)

    orders = {seed: order(seed) for seed in range(5)}
    assert all(sorted(order) == list("abcdef") for order in orders.values())
    assert len(set(orders.values())) > 1
    assert orders == {seed: order(seed) for seed in range(5)}


def test_join_gives_up_when_the_time_is_over() -> None:
    one = world()
    task = one.thread(target=lambda: one.sleep(100), name="long")
    task.start()
    task.join(1.0)
    assert task.is_alive()
    assert 1.0 <= one.scheduler.now < 2.0
    one.close()


def test_a_look_at_the_clock_lets_time_pass() -> None:
    one = world()
    begun = one.monotonic()
    while one.monotonic() < begun + 0.001:
        pass
    assert one.time_ns() > one.scheduler.now * 1e9


def test_what_fails_in_a_task_is_kept_for_the_end() -> None:
    one = world()
    one.thread(target=lambda: 1 / 0, name="bad").start()
    one.sleep(1)
    assert [type(error) for error in one.scheduler.failures] == [ZeroDivisionError]
    one.close()


def test_whoever_waits_for_ever_is_told() -> None:
    one = world()
    lock = one.lock()
    lock.acquire()
    with pytest.raises(Stuck, match="main"):
        lock.acquire()
    one.sleep(1)


def test_patience_ends_though_others_go_on() -> None:
    one = world()

    def tick() -> None:
        while True:
            one.sleep(60)

    one.thread(target=tick, name="ticks").start()
    lock = one.lock()
    lock.acquire()
    with pytest.raises(Stuck, match="ticks"):
        lock.acquire()
    assert one.scheduler.now >= PATIENCE_S
    one.close()


def test_what_runs_on_a_machine_ends_when_it_is_killed() -> None:
    one = world()
    steps: list[int] = []

    def work() -> None:
        for n in range(100):
            steps.append(n)
            one.sleep(1)

    with one.at("box"):
        task = one.thread(target=work, name="work")
    task.start()
    one.sleep(2.5)
    one.kill("box")
    assert not task.is_alive()
    one.sleep(10)
    assert steps == [0, 1, 2]
    assert isinstance(one.network, Network)
    one.close()
