"""Which segments may go: by age, by bytes, from the oldest on, and none that is held."""

from __future__ import annotations

import pytest

from meshmsg._model.log_policy import Retention
from meshmsg.recovery.log.format import SegmentName
from meshmsg.recovery.log.retention import expired, not_held

NAMES = [SegmentName(7, 0, first) for first in (0, 10, 20)] + [SegmentName(9, 0, 0)]
SIZES = [(name, 100) for name in NAMES]


def gone(retention: Retention, *, now_ns: int = 0, latest: list[int] | None = None) -> list[int]:
    times = dict(zip(NAMES, latest or [0] * 4, strict=True))
    found = expired(SIZES, retention, now_ns=now_ns, latest_ns=times.__getitem__)
    return [NAMES.index(name) for name in found]


def test_without_limits_nothing_goes() -> None:
    assert gone(Retention(), now_ns=1 << 60) == []


@pytest.mark.parametrize(
    ("bytes_max", "indices"), [(400, []), (399, [0]), (300, [0]), (201, [0, 1]), (1, [0, 1, 2])]
)
def test_the_oldest_go_until_the_rest_fits_and_the_last_stays(
    bytes_max: int, indices: list[int]
) -> None:
    assert gone(Retention(bytes_max=bytes_max)) == indices


def test_a_segment_goes_when_its_newest_event_is_too_old() -> None:
    age = Retention(age_s=10)
    second = 10**9
    latest = [1 * second, 5 * second, 6 * second, 7 * second]
    assert gone(age, now_ns=11 * second, latest=latest) == []
    assert gone(age, now_ns=11 * second + 1, latest=latest) == [0]
    assert gone(age, now_ns=99 * second, latest=latest) == [0, 1, 2]


def test_none_goes_from_behind_one_that_stays() -> None:
    assert gone(Retention(age_s=10), now_ns=10**12, latest=[10**12, 0, 0, 0]) == []


def test_times_are_asked_for_only_as_far_as_they_matter() -> None:
    asked: list[SegmentName] = []

    def latest_ns(name: SegmentName) -> int:
        asked.append(name)
        return 10**12

    expired(SIZES, Retention(age_s=10, bytes_max=300), now_ns=10**12, latest_ns=latest_ns)
    assert asked == [NAMES[1]]


@pytest.mark.parametrize(
    ("held", "count"),
    [(None, 3), ((7, 0), 0), ((7, 9), 0), ((7, 10), 1), ((7, 25), 2), ((9, 0), 3), ((0, 0), 0)],
)
def test_what_somebody_holds_stays_and_all_behind_it(
    held: tuple[int, int] | None, count: int
) -> None:
    assert not_held(NAMES[:3], NAMES, held) == NAMES[:count]
