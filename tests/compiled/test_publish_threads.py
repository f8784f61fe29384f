"""Threads that publish on one stream wait neither for each other's disk nor sends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Stream, Subscription
from meshmsg._native import COMPILED
from meshmsg.recovery.log.active_segment import ActiveSegment
from tests.support.pairs import pair

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="the compiled core is not in use (MESHMSG_PURE, or not built)"
)
WAIT_S = 60.0


class Hurdle:
    """What comes here waits until it is let through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)


@pytest.fixture
def hurdle() -> Iterator[Hurdle]:
    made = Hurdle()
    yield made
    made.opened.set()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    thread.join(WAIT_S)
    assert not thread.is_alive(), "it waits for the other one"


def taken_until(events: Subscription, last: bytes) -> list[bytes]:
    """The data of all events up to one."""
    found: list[bytes] = []
    while not found or found[-1] != last:
        event = events.get(timeout=WAIT_S)
        assert event is not None
        found.append(event.data)
    return found


def test_a_log_that_is_being_written_keeps_nobody_from_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurdle: Hurdle
) -> None:
    true_put = ActiveSegment.put

    def put(self: ActiveSegment, *record: Any) -> int:
        hurdle()
        return true_put(self, *record)

    stream = Stream("a.**", durability="log", segment_bytes="512KiB")  # its tail does not grow
    with pair(stream, data_dir=tmp_path) as (pub, _, events):
        monkeypatch.setattr(ActiveSegment, "put", put)

        def fill() -> None:
            while not hurdle.reached.is_set():
                pub.publish("a.b", bytes(200))

        filling = in_thread(fill)
        assert hurdle.reached.wait(WAIT_S)  # it stores what it filled
        joined(in_thread(lambda: pub.publish("a.b", b"meanwhile")))
        assert taken_until(events, b"meanwhile")
        hurdle.opened.set()
        joined(filling)


@pytest.mark.parametrize("durability", ["none", "log"])
def test_threads_go_on_while_another_one_sends(
    tmp_path: Path, hurdle: Hurdle, durability: str
) -> None:
    with pair(Stream("a.**", durability=durability), data_dir=tmp_path) as (pub, _, events):
        publisher = pub._open_node().publisher

        def send_late(message: bytes) -> bool:
            if b"the first" in message:
                hurdle()
            return False

        publisher.set_fault(send_late)
        sending = in_thread(lambda: pub.publish("a.b", b"the first"))
        assert hurdle.reached.wait(WAIT_S)
        wanted = [b"%d" % n for n in range(50)]  # fewer than fill a frame

        def publish() -> None:
            for data in wanted:
                pub.publish("a.b", data)

        joined(in_thread(publish))
        hurdle.opened.set()
        joined(sending)
        assert taken_until(events, wanted[-1]) == [b"the first", *wanted]
