"""A wake-up call between tasks."""

from meshmsg.transports.memory.network import wait_for
from meshmsg.transports.memory.platform import MemoryPlatform
from meshmsg.transports.memory.wakeup import Wakeup


def test_call_is_heard_until_it_is_cleared() -> None:
    scheduler = MemoryPlatform().scheduler
    wakeup = Wakeup(scheduler)
    scheduler.at(1.0, wakeup.set)
    assert wait_for(scheduler, [wakeup.fd], 5.0) == [wakeup.fd]
    assert scheduler.now < 2.0
    assert wait_for(scheduler, [wakeup.fd], 5.0) == [wakeup.fd]
    wakeup.clear()
    assert wait_for(scheduler, [wakeup.fd], 0.0) == []


def test_call_after_the_end_is_for_nobody() -> None:
    wakeup = Wakeup(MemoryPlatform().scheduler)
    wakeup.close()
    wakeup.set()
    assert not wakeup.fd.is_ready()
