"""What a log gives to somebody who misses events: frames once, what is gone, within bounds."""

from __future__ import annotations

from meshmsg._model.event import Loss
from meshmsg.recovery.log.reader import Entry
from meshmsg.recovery.log.repair import find_frames

EPOCH = 7


class Scripted:
    """A log of frames of ten events; `gone` are lost ones."""

    def __init__(self, stop: int, gone: dict[int, str] | None = None) -> None:
        self.stop = stop
        self.gone = gone or {}
        self.at = (0, 0)
        self.seeks: list[int] = []

    def seek(self, epoch: int, seq: int) -> None:
        self.at = (epoch, seq)
        self.seeks.append(seq)

    def step(self, stop: int) -> Entry | Loss | None:
        epoch, at = self.at
        first = at // 10 * 10
        if first >= self.stop:
            return None
        self.at = (epoch, first + 10)
        if first in self.gone:
            return Loss("s", EPOCH, at, first + 10, self.gone[first])
        return Entry(EPOCH, first, first + 10, 0, b"%03d" % first)


def test_frames_that_hold_the_ranges_come_once_each_and_in_order() -> None:
    log = Scripted(100)
    frames, gone, complete = find_frames(log, EPOCH, [(42, 44), (3, 12), (45, 46)], bytes_max=1000)
    assert (frames, gone, complete) == ([b"000", b"010", b"040"], {}, True)


def test_ranges_that_run_backward_and_what_is_not_there_yet_are_neither() -> None:
    log = Scripted(20)
    assert find_frames(log, EPOCH, [(9, 3), (5, 5), (50, 60)], bytes_max=1000) == ([], {}, True)


def test_what_is_gone_is_told_by_reason_and_not_beyond_what_was_asked() -> None:
    log = Scripted(100, {10: "corrupt", 30: "expired"})
    frames, gone, complete = find_frames(log, EPOCH, [(5, 33)], bytes_max=1000)
    assert frames == [b"000", b"020"]
    assert gone == {"corrupt": [(10, 20)], "expired": [(30, 33)]}
    assert complete


def test_an_answer_has_one_frame_at_least_and_says_that_it_is_not_all() -> None:
    frames, _, complete = find_frames(Scripted(100), EPOCH, [(0, 50)], bytes_max=1)
    assert (frames, complete) == ([b"000"], False)
    frames, _, complete = find_frames(Scripted(100), EPOCH, [(0, 50)], bytes_max=6)
    assert (frames, complete) == ([b"000", b"010"], False)
    frames, _, complete = find_frames(Scripted(100), EPOCH, [(0, 20)], bytes_max=1000, frames_max=2)
    assert (len(frames), complete) == (2, True)


def test_a_frame_of_another_epoch_ends_the_range() -> None:
    assert find_frames(Scripted(100), EPOCH + 1, [(0, 20)], bytes_max=1000) == ([], {}, True)
