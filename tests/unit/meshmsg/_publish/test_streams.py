"""What the parts of a publisher share is guarded by one lock, which a thread may take again."""

from __future__ import annotations

from meshmsg._publish.streams import Streams


def test_the_condition_is_the_lock_and_a_thread_takes_it_again() -> None:
    """Who waits for a subscriber may be called by one whose report it holds the lock for."""
    streams = Streams("pub")
    with streams.lock, streams.changed, streams.lock:
        streams.changed.notify_all()


def test_a_failure_is_counted_among_the_publishers_counters() -> None:
    streams = Streams("pub")
    streams.guard.each([lambda: 1 / 0])
    assert streams.counters["io_errors"] == 1
    assert (streams.fanout, streams.outlets) == (None, {})
