"""The thread that makes a log safe: whatever fails, it tells, and tries again."""

from __future__ import annotations

import pytest

from meshmsg._model.errors import LogError
from meshmsg.recovery.log.commit import Committer
from tests.support.waiting import wait_until


@pytest.mark.parametrize("error", [LogError("a", "b"), MemoryError("on purpose")])
def test_a_commit_that_fails_is_told_and_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshmsg.recovery.log.commit.RETRY_S", 0.01)
    fails = True
    tries = 0

    def commit() -> float:
        nonlocal tries
        tries += 1
        if fails:
            raise error
        return 30.0

    defects: list[Exception] = []
    committer = Committer(commit, 0.0, "log", defects.append)
    committer.start()
    try:
        committer.want()
        wait_until(lambda: tries > 2)
        assert isinstance(committer.error, LogError)
        assert str(error) in str(committer.error)
        assert set(defects) == (set() if isinstance(error, LogError) else {error})
        fails = False
        wait_until(lambda: committer.error is None)
    finally:
        committer.stop()
