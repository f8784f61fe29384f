"""Dead letters as they are read from their stream, and the events that are made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshmsg import Stream
from meshmsg._groups.redrive import LETTERS_BYTES_MAX, LETTERS_MAX, Letter, Redriver, _letter, _some
from meshmsg._publish.published_stream import Outlet
from meshmsg._wire.control import Operate
from meshmsg._wire.frame import Frame, encode_frame, encode_headers
from tests.support.grouping import Disk, seat_of
from tests.support.waiting import wait_until

ABOUT = {"dead.stream": "pub/a.**", "dead.seq": 3, "dead.attempts": 2, "dead.topic": "a.x"}


def frame_of(epoch: int, *abouts: dict[str, Any], size: int = 1) -> Frame:
    headers = {n: encode_headers(about) for n, about in enumerate(abouts)}
    payloads = [b"x" * size] * len(abouts)
    return Frame(encode_frame(9, 5, 0, "dead.g", payloads, 77, keys={0: "k"}, headers=headers))


def letter(frame: Frame, at: int = 0) -> Letter | None:
    return _letter(frame, at, (5, at), "pub/a.**")


def test_an_event_is_made_of_its_letter() -> None:
    frame = frame_of(1, {**ABOUT, "dead.epoch": 4, "own": 1})
    found = letter(frame)
    assert found is not None
    event = Frame(found.event(8))
    assert (event.stream, event.epoch, event.first, event.count) == (8, 4, 3, 1)
    assert (event.topic_at(0), event.key_at(0), event.payload_at(0)) == ("a.x", "k", b"x")
    assert (event.headers_at(0), event.is_raw(0)) == ({"own": 1}, True)


@pytest.mark.parametrize(
    "about",
    [
        {**ABOUT, "dead.epoch": 1, "dead.stream": "pub/b"},
        {**ABOUT, "dead.epoch": "x"},
        {**ABOUT, "dead.epoch": -1},
        {**ABOUT, "dead.epoch": 1 << 63},
        ABOUT,
        {},
    ],
)
def test_what_is_no_letter_of_the_stream_is_passed_over(about: dict[str, Any]) -> None:
    assert letter(frame_of(1, about)) is None


def test_so_many_at_one_time() -> None:
    found = letter(frame_of(1, {**ABOUT, "dead.epoch": 4}))
    large = letter(frame_of(1, {**ABOUT, "dead.epoch": 4}, size=LETTERS_BYTES_MAX))
    assert found is not None
    assert large is not None
    assert len(_some([found] * (LETTERS_MAX + 1), LETTERS_MAX)) == LETTERS_MAX
    assert len(_some([found, large, found], 9)) == 1
    assert len(_some([large, found], 9)) == 1  # one at least


def test_a_group_of_which_nothing_died_gets_nothing(tmp_path: Path) -> None:
    with Disk(tmp_path) as disk:
        outlet: Outlet = disk.open(Stream("a.**", durability="log"))
        seat = seat_of(outlet)
        streams, submit = disk.streams, disk.durable.replay.submit
        given: Any = (streams.changed, streams.counters, [seat], submit, bool, None, None)
        redriver = Redriver(*given)
        answers: list[Any] = []
        redriver.redrive(Operate(1, "group redrive", "g"), [seat], lambda *a: answers.append(a))
        wait_until(lambda: answers)
        row = {"group": "g", "stream": outlet.stream, "letters": 0, "redriven": 0, "left": 0}
        assert answers == [([row], "")]
