"""Key files: whole or not at all, for their owner only, and never overwritten."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat
from pathlib import Path

import pytest

from meshmsg import ConfigError, Security
from meshmsg._access.allow_list import Grant
from meshmsg._access.key_files import (
    allow,
    describe,
    new_folder,
    read_mesh_key,
    revoke,
    write_allow,
    write_new,
)
from meshmsg._access.keyring import Keyring, read_allow

KEY = "Zq3-uY8hJx0_vB5nRkT2wLmEo7sD1fGc9aXpQi4HyUz"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        grant = new_folder(tmp_path / "k", "desk", None)
    finally:
        os.umask(old)
    folder = tmp_path / "k"
    assert mode_of(folder) == 0o700
    assert {p.name: mode_of(p) for p in folder.iterdir()} == {
        "mesh.key": 0o600,
        "peer.key": 0o600,
        "allow.toml": 0o644,
    }
    found = describe(folder)
    assert found["key"] == grant.key.hex()
    for name in ("mesh.key", "peer.key"):
        assert (folder / name).read_text().strip() not in str(found)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    new_folder(tmp_path, "desk", None)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match="is there already, and is not overwritten"):
        new_folder(tmp_path, "desk", None)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        new_folder(tmp_path, "desk", None)


def test_allow_and_revoke(tmp_path: Path) -> None:
    new_folder(tmp_path, "desk", None)
    key = secrets.token_bytes(32)
    assert allow(tmp_path, Grant('we"ird', key, ("a.*", "b"), (), False))
    assert not allow(tmp_path, Grant('we"ird', key, ("a.*",), ("**",), True))
    keyring = Keyring(Security(key_dir=str(tmp_path)))
    assert keyring.grants[key] == Grant('we"ird', key, ("a.*",))
    assert keyring.look() == set()
    assert [grant.key for grant in revoke(tmp_path, 'we"ird')] == [key]
    assert revoke(tmp_path, "nobody") == []
    assert keyring.look() == set()  # it may be half written
    assert keyring.look() == {key}
    assert keyring.user(b"control", key) is None


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_full_disk_leaves_nothing_of_a_key_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    written = itertools.count()

    def fail(_: int) -> None:
        if next(written) == room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ConfigError, match="No space left"):
        new_folder(tmp_path / "keys", "desk", None)
    assert list((tmp_path / "keys").iterdir()) == []


def test_folders_of_one_mesh_have_its_key_and_a_list_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "k" / "allow.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text("# as it was\n")
    new_folder(path.parent, "desk", KEY)
    assert read_mesh_key(path.parent / "mesh.key") == KEY
    assert path.read_text() == "# as it was\n"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made: Not a directory"):
        new_folder(tmp_path / "file" / "k", "desk", None)


def test_mesh_keys_are_read_by_words_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "mesh.key"
    for text, found in ((f" {KEY}\n\n{KEY[::-1]} ", f"{KEY}\n{KEY[::-1]}"), (KEY, KEY)):
        path.write_text(text)
        path.chmod(0o600)
        assert read_mesh_key(path) == found
    for text, problem in ((" \n", "is empty"), (f"{KEY} secret", "guess")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            read_mesh_key(path)


def test_what_cannot_be_written_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_new(tmp_path / "a", "one", 0o600)
    with pytest.raises(ConfigError, match="is not overwritten"):
        write_new(tmp_path / "a", "two", 0o600)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot be written"):
        write_allow(tmp_path / "folder", [])
    with pytest.raises(ConfigError, match="cannot be written"):
        write_new(tmp_path / "missing" / "a", "three", 0o600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "folder"]
    assert (tmp_path / "a").read_text() == "one"


def test_a_peer_is_revoked_by_its_name_or_its_key_and_others_stay(tmp_path: Path) -> None:
    keys = [secrets.token_bytes(32) for _ in range(4)]
    for name, key in zip(("a", "a", "b", "c"), keys, strict=True):
        assert allow(tmp_path, Grant(name, key))
    assert [grant.key for grant in revoke(tmp_path, "a")] == keys[:2]
    assert [grant.key for grant in revoke(tmp_path, keys[2].hex())] == keys[2:3]
    assert list(read_allow(tmp_path / "allow.toml")) == keys[3:]


def test_a_list_of_nobody_can_be_read(tmp_path: Path) -> None:
    key = secrets.token_bytes(32)
    allow(tmp_path, Grant("a", key))
    revoke(tmp_path, "a")
    assert read_allow(tmp_path / "allow.toml") == {}
