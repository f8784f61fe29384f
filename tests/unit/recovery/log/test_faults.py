"""The file system that fails on purpose fails as it says, and keeps what it promised."""

from __future__ import annotations

from random import Random

import pytest

from meshmsg.recovery.log.faults import PAGE, Crashed, Faults, FaultyFiles
from meshmsg.recovery.log.files import Held


def memory(seed: int = 1, **faults: float) -> FaultyFiles:
    return FaultyFiles(Random(seed), Faults(**faults))  # type: ignore[arg-type]


def survivors(files: FaultyFiles, path: str, tries: int = 50) -> set[bytes | None]:
    """What different power failures leave of a file; `None`: its name is gone."""
    found: set[bytes | None] = set()
    for _ in range(tries):
        after = files.survivor()
        found.add(after.content(path) if path in after.paths() else None)
    return found


def test_what_was_synced_with_its_name_survives_a_power_failure() -> None:
    files = memory()
    file = files.open("/d/f", create=True)
    file.write_at([b"abc"], 0)
    file.sync()
    files.sync_folder("/d")
    assert survivors(files, "/d/f") == {b"abc"}


def test_a_name_that_was_not_synced_may_be_gone() -> None:
    files = memory()
    file = files.open("/d/f", create=True)
    file.write_at([b"abc"], 0)
    file.sync()
    assert survivors(files, "/d/f") == {None, b"abc"}
    assert files.survivor(power=False).content("/d/f") == b"abc"


def test_bytes_that_were_not_synced_may_be_old_new_or_torn() -> None:
    files = memory()
    file = files.open("/d/f", create=True)
    file.write_at([b"o" * PAGE], 0)
    file.sync()
    files.sync_folder("/d")
    file.write_at([b"n" * PAGE], 0)
    kinds = {(b"n" in (data or b""), b"o" in (data or b"")) for data in survivors(files, "/d/f")}
    assert (True, False) in kinds


def test_a_failed_sync_saves_nothing_the_next_time() -> None:
    lost = 0
    for seed in range(20):
        files = memory(seed)
        file = files.open("/d/f", create=True)
        file.sync()
        files.sync_folder("/d")
        file.write_at([b"abc"], 0)
        files.faults.sync_error = 1.0
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        files.faults.sync_error = 0.0
        file.sync()
        lost += files.survivor().content("/d/f") != b"abc"
    assert 0 < lost < 20


def test_a_full_disk_takes_what_fits_and_then_nothing() -> None:
    files = memory(capacity_bytes=10)
    file = files.open("/d/f", create=True)
    assert file.write_at([b"x" * 8], 0) == 8
    assert file.write_at([b"x" * 8], 8) == 2
    with pytest.raises(OSError, match="No space"):
        file.write_at([b"x"], 10)
    with pytest.raises(OSError, match="No space"):
        file.allocate(0, 11)
    assert file.write_at([b"y" * 8], 0) == 8  # what is there already may be written over


def test_a_write_behind_a_hole_that_does_not_fit_is_refused() -> None:
    files = memory(capacity_bytes=50)
    file = files.open("/d/f", create=True)
    with pytest.raises(OSError, match="No space"):
        file.write_at([b"x" * 100], 100)
    assert files.used_bytes() <= 50


def test_it_crashes_at_the_call_that_was_named() -> None:
    files = memory(crash_after=2)
    file = files.open("/d/f", create=True)
    file.write_at([b"abc"], 0)
    with pytest.raises(Crashed):
        file.sync()
    assert files.calls == 3


def test_errors_come_as_often_as_was_asked() -> None:
    files = memory(write_error=1.0, read_error=1.0, truncate_error=1.0)
    file = files.open("/d/f", create=True)
    for call in (
        lambda: file.write_at([b"x"], 0),
        lambda: file.read_at(1, 0),
        lambda: file.truncate(0),
    ):
        with pytest.raises(OSError, match="Input/output"):
            call()
    files.faults = Faults(short_write=1.0)
    assert 0 < file.write_at([b"abcdef"], 0) < 6
    assert file.write_at([b"a"], 0) == 1


def test_a_flipped_byte_stays_damaged_through_a_power_failure() -> None:
    files = memory()
    file = files.open("/d/f", create=True)
    file.write_at([b"abc"], 0)
    file.sync()
    files.sync_folder("/d")
    files.flip("/d/f", 1)
    assert files.content("/d/f") == b"acc"
    assert survivors(files, "/d/f") == {b"acc"}


def test_what_is_not_there_is_told_as_a_real_file_system_does() -> None:
    files = memory()
    for call in (
        lambda: files.open("/d/none"),
        lambda: files.replace("/d/none", "/d/f"),
        lambda: files.modified_ns("/d/none"),
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_a_lock_is_held_once() -> None:
    files = memory()
    held = files.lock("/d/lock")
    with pytest.raises(Held):
        files.lock("/d/lock")
    held.close()
    files.lock("/d/lock")
    assert files.survivor().locks == set()


def test_pages_written_through_a_mapping_are_lost_without_a_sync() -> None:
    files = memory()
    file = files.open("/d/f", create=True)
    file.truncate(8)
    file.sync()
    files.sync_folder("/d")
    file.map(8)[0:2] = b"ab"
    assert bytes(8) in survivors(files, "/d/f")
    file.sync()
    assert survivors(files, "/d/f") == {b"ab" + bytes(6)}
