"""Numbers are given without a lock: the stretches of bytecode that this rests on are as it needs.

CPython hands the GIL on, collects garbage and runs signal handlers at calls, at backward jumps and
when a container is allocated.  Between the first and the last step of giving a number there must be
none of these.
"""

from __future__ import annotations

import dis
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from meshmsg._publish.publisher import PublisherSide
from meshmsg._wire.frame import FrameBuilder
from tests.support import processes

#: What lets another thread in, or a finalizer.
FORBIDDEN = ("CALL", "JUMP_BACKWARD", "BUILD_", "YIELD", "RESUME", "IMPORT", "FORMAT_", "MAKE_")
#: Names in 3.11 for what only prepares a call; it is the call that counts.
HARMLESS = ("PRECALL",)


def stretch(function: Callable[..., Any], first: str, last: str) -> list[dis.Instruction]:
    """From the first load of one attribute to the last store of another."""
    steps = list(dis.get_instructions(function))
    begin = next(
        i for i, s in enumerate(steps) if s.opname.startswith("LOAD_ATTR") and s.argval == first
    )
    end = max(i for i, s in enumerate(steps) if s.opname == "STORE_ATTR" and s.argval == last)
    assert begin < end
    return steps[begin : end + 1]


@pytest.mark.parametrize(
    ("function", "first", "last"),
    [
        (PublisherSide.publish, "gated", "count"),
        (FrameBuilder.add, "count", "count"),
        (FrameBuilder.reserve, "count", "first"),
        (FrameBuilder.take, "first", "size"),
    ],
    ids=["publish", "add", "reserve", "take"],
)
def test_nothing_can_come_between_the_steps_of_giving_a_number(
    function: Callable[..., Any], first: str, last: str
) -> None:
    for step in stretch(function, first, last):
        if step.opname in HARMLESS:
            continue
        assert not step.opname.startswith(FORBIDDEN), f"{step.opname} in {function.__qualname__}"


def test_the_check_sees_a_call() -> None:
    def with_call(self: Any) -> None:
        index = self.count
        print(index)  # noqa: T201
        self.count = index + 1

    names = [step.opname for step in stretch(with_call, "count", "count")]
    assert any(name.startswith(FORBIDDEN) for name in names)


def test_threads_that_add_and_seal_lose_and_repeat_nothing() -> None:
    builder = FrameBuilder()
    given: list[list[int]] = [[] for _ in range(4)]
    taken: list[tuple[int, list[bytes]]] = []
    stop = threading.Event()

    def add(numbers: list[int]) -> None:
        for _ in range(20_000):
            while True:
                try:
                    numbers.append(builder.add("t", b"", 0))
                    break
                except IndexError:  # full, until the other thread has taken
                    pass

    def take() -> None:
        done = False
        while not done:
            done = stop.is_set()
            first, count, columns = builder.take()
            taken.append((first, columns[1][:count]))
            builder.give_back(columns, count)

    threads = [threading.Thread(target=add, args=(numbers,)) for numbers in given]
    taker = threading.Thread(target=take)
    for thread in [*threads, taker]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    taker.join()
    assert sorted(n for numbers in given for n in numbers) == list(range(80_000))
    assert sum(len(payloads) for _, payloads in taken) == 80_000
    stops = [first + len(payloads) for first, payloads in taken]
    assert [first for first, _ in taken[1:]] == stops[:-1], "without a hole"


def test_locked_path_gives_the_same_numbers() -> None:
    # Without the compiled core, which is never used where a lock is needed.
    environment = {**os.environ, "MESHMSG_PURE": "1"}
    command = processes.program("locked_numbers")
    subprocess.run(command, env=environment, check=True, timeout=60)
