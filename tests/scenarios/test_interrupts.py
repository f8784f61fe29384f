"""Ctrl-C at every point of publishing on a durable stream: what is published later is as numbered.

A signal is handled where Python looks for one: at the start of a function, after a call, and when a
loop goes round.  A tracer raises at each of these in turn.
"""

from __future__ import annotations

import dis
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from meshmsg import Peer, Stream, WaitTimeout
from meshmsg._model.event import Loss
from meshmsg._peer.peer import node_of
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.reader import LogReader
from tests.support.waiting import wait_until

LOOKS = ("RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD")
POINTS_MAX = 2000
PATIENCE_S = 30.0
#: The tail of the smallest segments, and what an event below takes there at most.
AREA_BYTES, ENTRY_BYTES = 16 * 1024, 80


class Interrupt:
    """Raises `KeyboardInterrupt` at the n-th point where a signal may be handled."""

    def __init__(self, point: int) -> None:
        self.left = point
        self.stack = ""  #: where it was raised
        self._names: dict[CodeType, dict[int, str]] = {}
        self._before: dict[FrameType, str | None] = {}

    def run(self, call: Callable[[], object]) -> None:
        with suppress(KeyboardInterrupt):
            self.run_into(call)

    def run_into(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        finally:
            sys.settrace(before)
            self._before.clear()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and self.left:
            code = frame.f_code
            if code not in self._names:
                found = dis.get_instructions(code)
                self._names[code] = {item.offset: item.opname for item in found}
            before = self._before.get(frame)
            self._before[frame] = self._names[code].get(frame.f_lasti)
            if before in LOOKS:
                self.left -= 1
                if not self.left:
                    self.stack = "".join(traceback.format_stack(frame, limit=5))
                    raise KeyboardInterrupt
        return self._trace


def fill_tail(pub: Peer) -> None:
    """Leave no room for another event in the tail."""
    log = pub._open_node().publisher.find("a.b").log
    assert log is not None
    while log.frame.shut or (room := AREA_BYTES - log.frame.at) > ENTRY_BYTES:
        pub.publish("a.b", b"full" * (1 if log.frame.shut or room < 1000 else 200))


@pytest.mark.parametrize(
    ("count", "size", "full"),
    [(1, 20, False), (1, 20, True), (1, 6000, True), (3, 20, False), (300, 20, True)],
)
def test_interrupted_publishing(tmp_path: Path, count: int, size: int, full: bool) -> None:
    stream = Stream("a.**", durability="log", segment_bytes="64KiB")
    marks: dict[tuple[int, int], bytes] = {}

    def publish() -> None:
        if count == 1:
            pub.publish("a.b", b"x" * size)
        else:
            pub.publish_many("a.b", [b"x" * size] * count)

    with Peer("pub", streams=[stream], data_dir=tmp_path) as pub:
        passed = 0
        for point in range(1, POINTS_MAX):
            if full:
                fill_tail(pub)
            interrupt = Interrupt(point)
            interrupt.run(publish)
            mark = b"%d" % point
            for position in (pub.publish("a.c", mark), pub.publish_many("a.c", [mark])):
                assert position is not None
                marks[position.epoch, position.seq] = mark
            passed = passed + 1 if interrupt.left else 0
            if passed == 3:
                break
    with LogReader(find_logs(str(tmp_path))[0]) as reader:
        reader.seek_earliest()
        for item in reader.runs():
            assert not isinstance(item, Loss), item
            for n, payload in enumerate(item.frame.payloads.split(0, item.frame.count)):
                place = (item.frame.epoch, item.frame.first + n)
                assert marks.pop(place, payload) == payload
    assert not marks


def test_interrupted_flush_leaves_the_publisher_to_others() -> None:
    def others_go_on() -> bool:
        other = threading.Thread(target=pub.publish, args=("a.b", 1), daemon=True)
        other.start()
        other.join(PATIENCE_S)
        return not other.is_alive()

    with (
        Peer("pub", streams=[Stream("a.**")], discovery="none") as pub,
        Peer("sub", connect=pub.address, discovery="none") as sub,
        sub.subscribe("a.**"),
    ):
        pub.wait_for_subscribers("a.b", timeout=PATIENCE_S)
        pub.publish("a.b", 0)  # and nobody takes it
        for point in range(1, POINTS_MAX):
            interrupt = Interrupt(point)
            # RuntimeError: raised within the library's own `wait`, while the lock is not held.
            with suppress(WaitTimeout, RuntimeError):
                interrupt.run(partial(pub.flush, timeout=0.001))
            assert others_go_on(), interrupt.stack
            if interrupt.left:
                break


# A subscription whose caller was interrupted before it had it is nobody's to close.
@pytest.mark.filterwarnings("ignore:a subscription was not closed:ResourceWarning")
@pytest.mark.parametrize("group", [None, "workers"])
def test_peer_whose_subscribe_was_interrupted_closes_at_once(group: str | None) -> None:
    opened: list[object] = []

    def subscribe(peer: Peer) -> None:
        opened.append(peer.subscribe("a.**", group=group))

    for point in range(1, POINTS_MAX, 11):
        interrupt, node = Interrupt(point), None
        try:
            with Peer("sub", discovery="none") as sub:
                node = node_of(sub)
                interrupt.run_into(partial(subscribe, sub))
        except KeyboardInterrupt:  # which has a hold of all that was being made
            assert node is not None
            wait_until(node.stopped.is_set, PATIENCE_S, interrupt.stack)
        if interrupt.left:
            break


def test_interrupted_publishing_without_the_compiled_core() -> None:
    nodes = [f"{__file__}::test_interrupted_publishing[{x}]" for x in ("1-20-True", "3-20-False")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *nodes],
        env={**os.environ, "MESHMSG_PURE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
