"""Who holds a log: few cursors of one peer, and none of a peer that never comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmsg._model.errors import LogError
from meshmsg.recovery.log import retention_holds as log_holds
from meshmsg.recovery.log.cursors import Cursors
from meshmsg.recovery.log.retention_holds import HOLDS_EACH_MAX, Holds

DAY_S = 86_400
HOUR_S = 3600


class Log:
    """The holds of a log, with a clock that is moved by hand."""

    def __init__(self, folder: Path, timeout_s: float = 7 * DAY_S) -> None:
        self.now_s = 1_000_000_000.0
        self._folder = folder
        self._timeout_s = timeout_s
        self.holds = self.start()

    def start(self) -> Holds:
        cursors = Cursors(str(self._folder / "cursors"))
        self.holds = Holds(cursors, "p/s", lambda: int(self.now_s * 1e9), self._timeout_s)
        self.holds.load()
        return self.holds

    def names(self) -> set[str]:
        self.holds.save()
        return {cursor.name for cursor in self.holds.blockers()}


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_one_peer_holds_a_log_a_few_times_and_others_still_can(log: Log) -> None:
    for number in range(HOLDS_EACH_MAX):
        assert log.holds.begin(f"greedy/{number}", 1, 0)
    with pytest.raises(LogError, match="'greedy' holds this log 16 times"):
        log.holds.begin("greedy/more", 1, 0)
    assert not log.holds.begin("greedy/0", 1, 0)
    assert log.holds.begin("honest/audit", 1, 0)


def test_a_consumer_that_never_comes_back_holds_nothing_more(log: Log) -> None:
    log.holds.begin("gone/audit", 1, 0)
    log.holds.begin("here/audit", 1, 0)
    for _ in range(8):
        assert log.names() == {"gone/audit", "here/audit"}
        log.now_s += DAY_S
        log.holds.heard("here/audit")
    assert log.names() == {"here/audit"}
    assert log.start().count == 1


def test_a_cursor_that_was_set_on_this_machine_holds_for_ever(log: Log) -> None:
    log.holds.begin("spark", 1, 0)
    log.now_s += 1000 * DAY_S
    assert log.names() == {"spark"}


def test_after_a_long_rest_of_the_log_itself_consumers_have_a_while_to_come_back(log: Log) -> None:
    log.holds.begin("late/audit", 1, 0)
    log.holds.begin("gone/audit", 1, 0)
    log.now_s += 30 * DAY_S
    log.start()
    log.now_s += HOUR_S / 2
    assert log.names() == {"late/audit", "gone/audit"}
    log.holds.begin("late/audit", 1, 0)
    log.now_s += HOUR_S
    assert log.names() == {"late/audit"}


def test_that_a_consumer_is_there_survives_a_restart(log: Log) -> None:
    log.holds.begin("here/audit", 1, 0)
    for _ in range(10):
        log.now_s += DAY_S
        log.holds.heard("here/audit")
        log.holds.save()
    log.start()
    log.now_s += 6 * DAY_S
    assert log.names() == {"here/audit"}


def test_when_all_places_are_taken_the_one_that_is_away_for_longest_gives_its_own(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_holds, "HOLDS_MAX", 2)
    log.holds.begin("first/a", 1, 0)
    log.now_s += 10
    log.holds.begin("second/a", 1, 0)
    with pytest.raises(LogError, match="consumers hold this log already"):
        log.holds.begin("third/a", 1, 0)
    log.now_s += HOUR_S
    log.holds.heard("first/a")
    log.holds.begin("third/a", 1, 0)
    assert log.names() == {"first/a", "third/a"}
