"""The words that say how a log is kept."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg._model.errors import ConfigError
from meshmsg._model.log_policy import FsyncWord, Retention


@pytest.mark.parametrize(
    ("text", "word", "by_thread"),
    [
        ("always", FsyncWord("always"), False),
        ("batch", FsyncWord("batch"), True),
        ("never", FsyncWord("never"), False),
        ("interval:50ms", FsyncWord("interval", 0.05), True),
        ("interval:2", FsyncWord("interval", 2.0), True),
    ],
)
def test_fsync_is_read(text: str, word: FsyncWord, by_thread: bool) -> None:
    assert FsyncWord.parse(text) == word
    assert word.by_thread is by_thread


@pytest.mark.parametrize(
    "text",
    ["", "sometimes", "interval", "interval:", "interval:0", "interval:x", None, "Always"],
)
def test_another_fsync_is_refused_and_told_in_full(text: Any) -> None:
    with pytest.raises(ConfigError, match="is not one of always, batch, interval:50ms, never"):
        FsyncWord.parse(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (None, Retention()),
        ("7d", Retention(604_800.0)),
        ("10GB", Retention(None, 10**10)),
        (" 90m , 64MiB ", Retention(5400.0, 64 << 20)),
        ("64b,1h", Retention(3600.0, 64)),
    ],
)
def test_retention_is_read(text: str | None, kept: Retention) -> None:
    assert Retention.parse(text) == kept


@pytest.mark.parametrize("text", ["", "7", "d", "7x", "7d,", "-1d", "0GB", "GB", "7d;1GB", 7])
def test_another_retention_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Retention.parse(text)
    assert caught.value.field == "retention"


@pytest.mark.parametrize("text", ["0s", "0d", "0ms,1GB"])
def test_an_age_of_nothing_would_remove_all_and_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an age or a size"):
        Retention.parse(text)
