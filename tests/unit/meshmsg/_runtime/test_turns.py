"""A slice of a turn ends, and then others get their turn."""

from __future__ import annotations

import pytest

from meshmsg._runtime import turns as _turns
from meshmsg._runtime.turns import PAUSE_S, TURN_S, Slice, next_beat


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    state = {"now": 100.0, "slept": 0.0}
    monkeypatch.setattr(_turns._platform, "monotonic", lambda: state["now"])

    def sleep(seconds: float) -> None:
        state["slept"] += seconds

    monkeypatch.setattr(_turns._platform, "sleep", sleep)
    return state


def test_a_slice_is_over_when_its_time_is(clock: dict[str, float]) -> None:
    turn = Slice()
    assert not turn.is_over()
    clock["now"] += TURN_S * 0.9
    assert not turn.is_over()
    clock["now"] += TURN_S * 0.2
    assert turn.is_over()


def test_others_are_let_run_only_after_a_whole_slice(clock: dict[str, float]) -> None:
    turn = Slice()
    turn.give_way()
    assert clock["slept"] == 0.0
    clock["now"] += TURN_S * 1.1
    turn.give_way()
    assert clock["slept"] == PAUSE_S


@pytest.mark.parametrize("phase_s", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("every_s", [0.05, 1.0, 7.5])
def test_peers_that_began_at_different_times_share_their_beats(
    phase_s: float, every_s: float
) -> None:
    platform = _turns._platform.Platform()
    platform.phase_s = phase_s
    with _turns._platform.entered(platform):
        beat = next_beat(1000.0, every_s)
        assert 1000.0 + every_s / 2 <= beat <= 1000.0 + every_s * 3 / 2
        for part in (-0.49, 0.0, 0.001, 0.49):
            assert next_beat(beat + part * every_s, every_s) == pytest.approx(beat + every_s)
