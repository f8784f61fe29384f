"""The epoch of streams without a log is greater than that of every start that is known of."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmsg._publish import volatile_epoch as module
from meshmsg._publish.volatile_epoch import volatile_epoch


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_newest", 0)


def test_it_is_the_clocks_and_grows_where_the_clock_does_not() -> None:
    assert [volatile_epoch(clock, "a", None) for clock in (100, 100, 50, 200)] == [
        100,
        101,
        102,
        200,
    ]


def test_the_last_start_is_kept_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = str(tmp_path / "data")
    assert volatile_epoch(100, "a/b", data_dir) == 100
    monkeypatch.setattr(module, "_newest", 0)  # another process, whose clock was set back
    assert volatile_epoch(50, "a/b", data_dir) == 101
    monkeypatch.setattr(module, "_newest", 0)
    assert volatile_epoch(50, "other", data_dir) == 50


@pytest.mark.parametrize("content", [b"", b"damaged", b'{"version":1,"epoch":7}'])
def test_what_cannot_be_believed_counts_as_not_there(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    volatile_epoch(100, "a", str(tmp_path))
    [file] = tmp_path.iterdir()
    file.write_bytes(content)
    assert volatile_epoch(5, "b", None) == 101
    assert module._read(str(tmp_path), "a") == 0
    assert ("damaged" in caplog.text) == bool(content)


def test_a_folder_that_cannot_be_written_does_not_keep_a_peer_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert volatile_epoch(100, "a", f"{tmp_path}/file/data") == 100
    assert "cannot be kept" in caplog.text
