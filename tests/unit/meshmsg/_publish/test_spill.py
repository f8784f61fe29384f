"""Where a stream spills, and that nothing of it is left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from meshmsg import PeerConfig, Stream
from meshmsg._publish.spill import SPILL_FOLDER, TEMPORARY, SpillPlace
from meshmsg._runtime.private_folder import PrivateFolder
from meshmsg._wire.frame import encode_frame

SPILLS = Stream("a", overflow="spill")
NAME = "pub/a"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def place(data_dir: Path | None = None) -> SpillPlace:
    return SpillPlace(PeerConfig("pub", data_dir=None if data_dir is None else str(data_dir)))


@pytest.mark.parametrize("stream", [Stream("a"), Stream("a", overflow="spill", durability="log")])
def test_streams_that_block_or_have_a_log_have_no_spill(stream: Stream, temporary: Path) -> None:
    made = place()
    assert made.spill_of(stream, NAME, 7) is None
    assert list(temporary.iterdir()) == []
    made.close()


def test_without_a_data_dir_all_streams_share_a_folder_that_goes_with_the_peer(
    temporary: Path,
) -> None:
    made = place()
    spills = [made.spill_of(SPILLS, name, 7) for name in (NAME, "pub/b")]
    [folder] = temporary.iterdir()
    assert folder.name.startswith(TEMPORARY)
    assert folder.stat().st_mode & 0o777 == 0o700
    for spill in spills:
        assert spill is not None
        assert spill.take(0, 1, encode_frame(1, 7, 0, "a", [b"x"], 1))
    assert len(list(folder.iterdir())) == 2
    for spill in spills:
        assert spill is not None
        spill.close()
    made.close()
    made.close()
    assert list(temporary.iterdir()) == []


def test_with_a_data_dir_it_spills_there(tmp_path: Path, temporary: Path) -> None:
    made = place(tmp_path / "data")
    spill = made.spill_of(SPILLS, NAME, 7)
    assert spill is not None
    assert spill.take(0, 1, encode_frame(1, 7, 0, "a", [b"x"], 1))
    assert Path(spill.folder.path).parent == tmp_path / "data" / SPILL_FOLDER
    spill.close()
    made.close()
    assert not (tmp_path / "data" / SPILL_FOLDER).exists()
    assert list(temporary.iterdir()) == []


def test_what_is_not_ours_stays_in_the_folder(tmp_path: Path) -> None:
    made = place(tmp_path)
    made.spill_of(SPILLS, NAME, 7)
    other = tmp_path / SPILL_FOLDER / "notes"
    other.mkdir(parents=True)
    (other / "text").write_text("mine")
    made.close()
    assert (other / "text").read_text() == "mine"


def left_by_a_killed_process(temporary: Path) -> Path:
    """A folder with a spill that nobody has locked."""
    folder = PrivateFolder.make(TEMPORARY)
    made = SpillPlace(PeerConfig("pub", data_dir=folder.path))
    spill = made.spill_of(SPILLS, NAME, 7)
    assert spill is not None
    assert spill.take(0, 1, encode_frame(1, 7, 0, "a", [b"x"], 1))
    inner = Path(spill.folder.path)
    files = {path.name: path.read_bytes() for path in inner.iterdir()}
    spill.close()
    inner.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, data in files.items():
        (inner / name).write_bytes(data)
    found = Path(folder.path)
    (found / SPILL_FOLDER / inner.name).rename(found / inner.name)
    (found / SPILL_FOLDER).rmdir()
    folder.close()
    return found


def test_what_a_killed_process_left_is_removed_by_the_next(temporary: Path) -> None:
    left = left_by_a_killed_process(temporary)
    made = place()
    assert made.spill_of(SPILLS, NAME, 7) is not None
    assert not left.exists()
    made.close()


def test_of_what_a_killed_process_left_only_files_that_a_spill_makes_are_removed(
    temporary: Path,
) -> None:
    left = left_by_a_killed_process(temporary)
    [inner] = left.iterdir()
    (inner / "orders.csv").write_text("mine")
    made = place()
    assert made.spill_of(SPILLS, NAME, 7) is not None
    assert [path.name for path in inner.iterdir()] == ["orders.csv"]
    made.close()


def test_a_folder_in_use_stays(temporary: Path) -> None:
    first, second = place(), place()
    first.spill_of(SPILLS, NAME, 7)
    second.spill_of(SPILLS, NAME, 7)
    assert len(list(temporary.iterdir())) == 2
    second.close()
    assert len(list(temporary.iterdir())) == 1
    first.close()
