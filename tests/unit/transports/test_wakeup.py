"""A wake-up call makes a descriptor readable until it is cleared."""

from __future__ import annotations

import select
import threading

from meshmsg.transports.wakeup import Wakeup


def is_readable(wakeup: Wakeup, timeout_s: float = 0.0) -> bool:
    return bool(select.select([wakeup.fd], [], [], timeout_s)[0])


def test_calls_are_there_until_they_are_cleared() -> None:
    wakeup = Wakeup()
    assert not is_readable(wakeup)
    wakeup.set()
    wakeup.set()
    assert is_readable(wakeup)
    assert is_readable(wakeup)
    wakeup.clear()
    assert not is_readable(wakeup)
    wakeup.clear()  # nothing there: nothing to do
    wakeup.close()


def test_a_call_of_another_thread_ends_a_wait() -> None:
    wakeup = Wakeup()
    caller = threading.Thread(target=wakeup.set)
    caller.start()
    assert is_readable(wakeup, 30.0)
    caller.join()
    wakeup.close()


def test_after_close_calls_are_harmless() -> None:
    wakeup = Wakeup()
    wakeup.close()
    wakeup.close()
    wakeup.set()
    wakeup.clear()
    assert wakeup.fd == -1


def test_very_many_calls_do_not_wait() -> None:
    wakeup = Wakeup()
    for _ in range(10_000):
        wakeup.set()
    wakeup.clear()
    assert not is_readable(wakeup)
    wakeup.close()
