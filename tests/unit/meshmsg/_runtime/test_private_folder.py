"""Temporary folders on a machine with other users: their links and folders are left alone."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmsg import Peer, Stream
from meshmsg._publish.spill import TEMPORARY
from meshmsg._runtime.private_folder import PrivateFolder, remove_strays
from meshmsg.recovery.log.spill import is_spill_file
from meshmsg.spark_sink import JavaMissing, java, sockets

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_another_user(command: str) -> None:
    """Run a shell as another user of this machine, who may not see this Python."""
    subprocess.run(["/bin/sh", "-ec", command], check=True, user=NOBODY, group=NOBODY, cwd="/")


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that all users write to."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    yield made
    shutil.rmtree(made)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@needs_root
def test_links_of_another_user_do_not_make_a_spill_empty_folders(
    shared: Path, tmp_path: Path
) -> None:
    with Peer("pay", streams=[Stream("pay.**", durability="log")], data_dir=tmp_path) as peer:
        peer.publish_many("pay.in", range(100))
    durable = next(path for path in tmp_path.iterdir() if (path / "lock").exists())
    other = tmp_path / "other"
    other.mkdir()
    for name in ("lock", "status", "diversions"):
        (other / name).touch()
    before = names(durable)
    as_another_user(
        f"cd {shared}; mkdir {TEMPORARY}evil; ln -s '{durable}' {TEMPORARY}evil/a;"
        f"ln -s '{other}' {TEMPORARY}evil/b; ln -s '{durable.parent}' {TEMPORARY}link"
    )
    with Peer("victim", streams=[Stream("x.**", overflow="spill")]):
        pass
    assert names(durable) == before
    assert names(other) == ["diversions", "lock", "status"]
    assert names(shared / f"{TEMPORARY}evil") == ["a", "b"]


def test_spill_removes_only_what_a_spill_makes(shared: Path) -> None:
    """Folders of ours: a stray one, two with links in them, one with a file of somebody's own."""
    segment = f"{7:019d}-0000-{0:019d}"
    target = shared / "target"
    target.mkdir()
    (target / "lock").touch()
    for name in ("stray", "linked", "mixed"):
        folder = shared / f"{TEMPORARY}{name}" / "x"
        folder.mkdir(parents=True)
        folder.parent.chmod(0o700)
        for file in ("lock", "stream.json", "epochs.json", f"{segment}.seg", f"{segment}.idx"):
            (folder / file).touch()
    (shared / f"{TEMPORARY}linked" / "a").symlink_to(target)
    locked = shared / f"{TEMPORARY}locked" / "x"
    locked.mkdir(parents=True)
    locked.parent.chmod(0o700)
    (locked / "lock").symlink_to(target / "lock")
    (shared / f"{TEMPORARY}mixed" / "x" / "status").touch()
    with Peer("victim", streams=[Stream("x.**", overflow="spill")]):
        pass
    assert names(target) == ["lock"]
    assert not (shared / f"{TEMPORARY}stray").exists()
    assert (shared / f"{TEMPORARY}linked" / "a").is_symlink()
    assert (locked / "lock").is_symlink()
    assert names(shared / f"{TEMPORARY}mixed" / "x") == ["status"]


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("lock", True),
        ("epochs.copy.json.new", True),
        (f"{1:019d}-0000-{5:019d}.idx", True),
        (f"{1:019d}-0000-{5:019d}.seg.new", True),
        ("status", False),
        ("1-0-5.seg", False),
        ("recorded.json", False),
    ],
)
def test_names_that_a_spill_makes(name: str, made: bool) -> None:
    assert is_spill_file(name) is made


def test_folder_in_use_or_open_to_others_is_no_stray(shared: Path) -> None:
    used = PrivateFolder.make("mine-", str(shared))
    left = PrivateFolder.make("mine-", str(shared))
    left.close()
    shown = shared / "mine-shown"
    shown.mkdir(mode=0o755)
    assert stat.S_IMODE(os.stat(used.path).st_mode) == 0o700
    remove_strays(str(shared), re.compile("mine-.+"), lambda fd: None)
    assert names(shared) == sorted([Path(used.path).name, "mine-shown"])
    used.close()


@needs_root
def test_sockets_of_another_user_are_left_alone(shared: Path) -> None:
    as_another_user(f"mkdir -m 700 {shared}/meshmsg-spark-1-a")
    remove_strays(str(shared), sockets._NAMES, sockets._empty)
    assert names(shared) == ["meshmsg-spark-1-a"]


@needs_root
@pytest.mark.parametrize("what", ["link", "folder"])
def test_java_is_not_written_into_what_another_user_made(
    shared: Path, tmp_path: Path, what: str
) -> None:
    place = f"{shared}/meshmsg-java-{os.geteuid()}"
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    as_another_user(f"ln -s '{ours}' {place}" if what == "link" else f"mkdir -m 777 {place}")
    with pytest.raises(JavaMissing, match="XDG_CACHE_HOME"):
        java.make_shim(Path("/usr/bin/java"))
    assert names(ours) == []


@pytest.mark.parametrize("level", [".", "bin"])
def test_java_is_not_written_where_others_may_write(shared: Path, level: str) -> None:
    home = shared / f"meshmsg-java-{os.geteuid()}"
    (home / "bin").mkdir(parents=True, mode=0o700)
    home.chmod(0o755)
    (home / level).chmod(0o775)
    with pytest.raises(JavaMissing, match="others have rights on it"):
        java.make_shim(Path("/usr/bin/java"))


def test_java_lies_in_folders_that_nobody_else_may_change(
    shared: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    umask = os.umask(0)
    try:
        made = [java.make_shim(Path("/usr/bin/java"))]
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        made += [java.make_shim(Path("/usr/bin/java")) for _ in range(2)]
    finally:
        os.umask(umask)
    assert made == [f"{shared}/meshmsg-java-{os.geteuid()}", *[f"{tmp_path}/meshmsg-java"] * 2]
    for home in map(Path, made):
        assert names(home / "bin") == ["java"]
        for path in (home, home / "bin", home / "bin" / "java"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
