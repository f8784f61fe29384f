"""The file layer: rights, locks, short writes, and small files that are replaced as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from meshmsg.recovery.log.faults import Crashed, Faults, FaultyFiles
from meshmsg.recovery.log.files import (
    REAL,
    Held,
    RealFile,
    read_small,
    replace_small,
    write_all,
)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_made_is_the_owners_alone(tmp_path: Path) -> None:
    REAL.make_folder(f"{tmp_path}/a/b")
    REAL.open(f"{tmp_path}/a/b/file", create=True).close()
    assert mode(tmp_path / "a") == mode(tmp_path / "a/b") == 0o700
    assert mode(tmp_path / "a/b/file") == 0o600
    REAL.make_folder(f"{tmp_path}/a/b")  # again: nothing


def test_a_folder_with_the_group_bit_shares_with_its_group(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2750)
    REAL.make_folder(f"{shared}/a")
    REAL.open(f"{shared}/file", create=True).close()
    assert mode(shared / "a") == 0o750
    assert mode(shared / "file") == 0o640


def test_create_refuses_what_is_there_and_open_what_is_not(tmp_path: Path) -> None:
    path = f"{tmp_path}/file"
    with pytest.raises(FileNotFoundError):
        REAL.open(path)
    REAL.open(path, create=True).close()
    with pytest.raises(FileExistsError):
        REAL.open(path, create=True)
    REAL.remove(path)
    REAL.remove(path)  # again: nothing


def test_names_are_those_of_files_and_folders_those_of_folders(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert REAL.names(str(tmp_path)) == {"file": 3}
    assert REAL.folders(str(tmp_path)) == ["folder"]
    assert REAL.names(f"{tmp_path}/none") == {}


def test_a_file_is_written_read_cut_and_mapped_at_any_place(tmp_path: Path) -> None:
    file = REAL.open(f"{tmp_path}/file", create=True)
    assert file.write_at([b"ab", b"cd"], 4) == 4
    assert file.read_at(100, 0) == b"\0\0\0\0abcd"
    file.map(8)[0:2] = b"XY"
    assert file.read_at(3, 0) == b"XY\0"
    file.truncate(6)
    assert file.size() == 6
    file.allocate(0, 64)
    assert file.size() == 64
    file.sync()
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_at(1, 0)


def test_a_lock_is_held_once_says_by_whom_and_is_free_when_closed(tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    held = REAL.lock(path)
    with pytest.raises(Held) as caught:
        REAL.lock(path)
    assert caught.value.pid == os.getpid()
    held.close()
    REAL.lock(path).close()


def test_a_lock_that_does_not_say_whose_it_is_is_looked_up(tmp_path: Path) -> None:
    held = REAL.lock(f"{tmp_path}/lock")
    (tmp_path / "lock").write_bytes(b"?")
    with pytest.raises(Held) as caught:
        REAL.lock(f"{tmp_path}/lock")
    assert caught.value.pid in (0, os.getpid())
    held.close()


def test_a_forked_child_lets_go_of_what_its_parent_writes(tmp_path: Path) -> None:
    path = f"{tmp_path}/file"
    file = REAL.open(path, create=True)
    reader = REAL.open(path)
    pid = os.fork()
    if not pid:
        try:
            file.write_at([b"child"], 0)
        except OSError:
            reader.read_at(1, 0)
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    write_all(file, [b"parent"], 0)
    assert reader.read_at(10, 0) == b"parent"
    file.close()
    reader.close()


class Stingy(RealFile):
    """Takes three bytes a call, and after some nothing."""

    def __init__(self, fd: int, calls: int) -> None:
        super().__init__(fd)
        self.calls = calls

    def write_at(self, parts: Sequence[bytes], offset: int) -> int:
        self.calls -= 1
        if self.calls < 0:
            return 0
        return super().write_at([b"".join(parts)[:3]], offset)


def test_all_is_written_however_little_a_call_takes(tmp_path: Path) -> None:
    path = f"{tmp_path}/file"
    flags = os.O_RDWR | os.O_CREAT
    file = Stingy(os.open(path, flags), 100)
    write_all(file, [b"abcd", b"", b"efgh"], 2)
    assert file.read_at(100, 0) == b"\0\0abcdefgh"
    file.close()
    full = Stingy(os.open(path, flags), 2)
    with pytest.raises(OSError, match="nothing more") as caught:
        write_all(full, [b"abcdefgh"], 0)
    assert caught.value.errno == errno.ENOSPC
    full.close()


def test_a_small_file_is_read_whole_or_refused(tmp_path: Path) -> None:
    path = f"{tmp_path}/file"
    assert read_small(REAL, path, 10) is None
    replace_small(REAL, str(tmp_path), "file", b"0123456789")
    assert read_small(REAL, path, 10) == b"0123456789"
    with pytest.raises(OSError, match="more than 9 bytes"):
        read_small(REAL, path, 9)
    assert sorted(REAL.names(str(tmp_path))) == ["file"]


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_leaves_the_old_small_file_or_the_new_one(seed: int) -> None:
    rng = Random(seed)
    files = FaultyFiles(rng)
    replace_small(files, "/d", "f", b"old")
    files.faults = Faults(crash_after=rng.randrange(7), short_write=0.5)
    try:
        replace_small(files, "/d", "f", b"new")
    except Crashed:
        pass
    assert files.survivor().content("/d/f") in (b"old", b"new")
