"""Locks, conditions and events of a simulated world behave as those of `threading`."""

import pytest

from meshmsg.transports.memory.platform import MemoryPlatform


def test_lock_is_held_by_one_at_a_time() -> None:
    one = MemoryPlatform(1)
    lock, inside, most = one.lock(), [0], [0]

    def work() -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            one.sleep(1)
            inside[0] -= 1

    tasks = [one.thread(target=work, name=f"t{n}") for n in range(4)]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert most == [1]
    assert one.scheduler.now >= 4.0
    one.close()


def test_lock_that_is_held_is_not_taken_in_vain() -> None:
    one = MemoryPlatform()
    lock = one.lock()
    assert lock.acquire()
    assert lock.locked()
    assert not lock.acquire(blocking=False)
    assert not lock.acquire(timeout=2.0)
    assert one.scheduler.now >= 2.0
    lock.release()
    with pytest.raises(RuntimeError, match="unlocked"):
        lock.release()


def test_rlock_is_taken_again_by_its_owner_only() -> None:
    one = MemoryPlatform()
    lock = one.rlock()
    with lock, lock:
        assert lock._is_owned()
        tried: list[bool] = []
        task = one.thread(target=lambda: tried.append(lock.acquire(timeout=1)), name="other")
        task.start()
        task.join()
        assert tried == [False]
    assert not lock._is_owned()
    with pytest.raises(RuntimeError, match="un-acquired"):
        lock.release()


def test_condition_wakes_who_waits() -> None:
    one = MemoryPlatform()
    condition, seen = one.condition(one.rlock()), []

    def wait() -> None:
        with condition:
            seen.append(condition.wait(10))

    task = one.thread(target=wait, name="waits")
    task.start()
    one.sleep(1)
    with condition:
        condition.notify_all()
    task.join()
    assert seen == [True]
    with condition:
        assert not condition.wait(1)
        assert condition.wait_for(lambda: True)
        assert not condition.wait_for(lambda: False, 0.5)
    one.close()


def test_event_lets_go_whoever_waits() -> None:
    one = MemoryPlatform()
    event, seen = one.event(), []
    task = one.thread(target=lambda: seen.append(event.wait()), name="waits")
    task.start()
    one.sleep(1)
    assert not event.is_set()
    event.set()
    task.join()
    assert seen == [True]
    event.clear()
    assert not event.wait(1)
    one.close()
