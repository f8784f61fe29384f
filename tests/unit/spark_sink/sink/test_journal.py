"""The journal of a table: what counts after a crash, who may write, and what readers see of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshmsg import ConfigError, LogError
from meshmsg.spark_sink.sink import journal as sink_journal
from meshmsg.spark_sink.sink.formats import open_table
from meshmsg.spark_sink.sink.journal import (
    FOLDER,
    Commit,
    Journal,
    Staged,
    decode_commit,
    journal_files,
    read_about,
    read_commits,
    read_lines,
    read_positions,
)
from meshmsg.spark_sink.source.positions import EPOCHS_KEPT, Range
from tests.spark.logs import EPOCH, STREAM
from tests.spark.tables import BATCH, SCHEMA, output, write_batch

KEY = f"{STREAM}/{EPOCH}"


def commit(number: int, first: int, stop: int, epoch: int = EPOCH) -> Commit:
    files = [Staged("out", f"x/{number}.parquet", f"part-{number}.parquet", stop - first, 100)]
    return Commit(number, number - 1, [Range(STREAM, epoch, first, stop)], files, stop - first)


def opened(folder: Path, **about: str) -> Journal:
    made = Journal(str(folder))
    made.open({"format": "parquet", **about}, wait_s=0)
    return made


def test_a_commit_comes_back_as_it_was_written(tmp_path: Path) -> None:
    table = tmp_path / "lake"
    journal = opened(table)
    assert (journal.last, journal.next_number, journal.positions) == (None, 1, {})
    first = commit(1, 0, 10)._replace(quarantined=2, lost=3, time_ns=7)
    journal.append(first)
    journal.append(commit(2, 10, 15))
    assert (journal.next_number, journal.positions) == (3, {KEY: 15})
    assert read_positions(str(table)) == {KEY: 15}  # by anyone, while it is written
    assert list(journal.commits()) == [first, commit(2, 10, 15)]
    journal.close()
    again = opened(table)
    assert (again.last, again.positions) == (commit(2, 10, 15), {KEY: 15})
    assert again.about == journal.about
    again.close()


def test_positions_do_not_go_back_with_a_commit_of_what_is_there(tmp_path: Path) -> None:
    journal = opened(tmp_path / "lake")
    journal.append(commit(1, 0, 10))
    journal.append(commit(2, 0, 4))
    assert journal.positions == {KEY: 10}
    journal.close()


def test_a_line_that_could_not_be_written_leaves_nothing_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path / "lake")
    journal.append(commit(1, 0, 10))

    def half(handle: int, data: bytes) -> None:
        os.write(handle, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sink_journal, "write_all", half)
        with pytest.raises(OSError, match="No space"):
            journal.append(commit(2, 10, 20))
    assert (journal.next_number, journal.positions) == (2, {KEY: 10})
    journal.append(commit(2, 10, 12))
    journal.close()
    assert [one.number for one in read_commits(str(tmp_path / "lake"))] == [1, 2]
    assert read_positions(str(tmp_path / "lake")) == {KEY: 12}


def test_a_new_file_names_only_the_last_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_journal, "COMMITS_A_FILE", EPOCHS_KEPT + 3)
    journal = opened(tmp_path / "lake")
    for number in range(1, EPOCHS_KEPT + 5):
        journal.append(commit(number, 0, 5, epoch=number))
    kept = {f"{STREAM}/{number}": 5 for number in range(4, EPOCHS_KEPT + 5)}
    assert journal.positions == kept
    journal.close()
    again = opened(tmp_path / "lake")
    assert again.positions == kept
    assert again.last == commit(EPOCHS_KEPT + 4, 0, 5, epoch=EPOCHS_KEPT + 4)
    again.close()


def test_a_file_whose_first_line_was_cut_off_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_journal, "COMMITS_A_FILE", 1)
    journal = opened(tmp_path / "lake")
    journal.append(commit(1, 0, 10))
    journal.append(commit(2, 10, 20))
    journal.close()
    newest = Path(journal.folder, journal_files(journal.folder)[-1])
    newest.write_bytes(newest.read_bytes()[:5])
    again = opened(tmp_path / "lake")
    assert again.positions == {KEY: 10}
    again.append(commit(2, 10, 30))
    again.close()
    assert read_positions(str(tmp_path / "lake")) == {KEY: 30}


def test_what_was_published_is_known_again_by_the_same_table_only(tmp_path: Path) -> None:
    journal = opened(tmp_path / "lake")
    journal.note_published(7)
    journal.close()
    again = opened(tmp_path / "lake")
    assert again.published == 7
    again.close()
    other = opened(tmp_path / "other")
    assert other.published == 0
    Path(other.folder, "published").write_bytes(Path(again.folder, "published").read_bytes())
    other.close()
    other.open({"format": "parquet"}, wait_s=0)
    assert other.published == 0
    other.close()


def test_what_a_table_says_of_itself_is_checked(tmp_path: Path) -> None:
    assert read_about(str(tmp_path)) is None
    assert read_positions(str(tmp_path)) == {}
    assert list(read_commits(str(tmp_path))) == []
    journal = opened(tmp_path / "lake")
    journal.close()
    with pytest.raises(ConfigError, match="was begun with format = 'parquet'"):
        opened(tmp_path / "lake", format="delta")
    about = Path(journal.folder, "table.json")
    about.write_bytes(about.read_bytes()[:-3])
    with pytest.raises(LogError, match="is damaged"):
        read_about(str(tmp_path / "lake"))


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("x")
    with pytest.raises(ConfigError, match="lake is a file: name a folder"):
        opened(tmp_path / "lake")
    (tmp_path / "table" / FOLDER / "lock").mkdir(parents=True)
    with pytest.raises(LogError, match="cannot be used"):
        opened(tmp_path / "table")


def test_lines_end_where_the_good_ones_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    one, two = commit(1, 0, 10).encode(), commit(2, 10, 20).encode()
    path.write_bytes(one + two[:-1])
    ((fields, end),) = read_lines(str(path))
    assert (decode_commit(fields), end) == (commit(1, 0, 10), len(one))
    path.write_bytes(one[:-4] + b"xxx\n" + two)
    with pytest.raises(LogError, match="damaged at byte 0"):
        list(read_lines(str(path)))
    path.write_bytes(b"")
    assert list(read_lines(str(path))) == []


# --- as tables have them ---


def test_line_that_was_cut_off_never_counted(tmp_path: Path) -> None:
    made = output(tmp_path)
    table = open_table(made)
    table.open(SCHEMA)
    write_batch(table, 0)
    write_batch(table, 1)
    table.close()
    journal = next((Path(made.out) / "_meshmsg").glob("commits-*"))
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    for cut in (1, len(lines[-1]) // 2, len(lines[-1]) - 1):
        journal.write_bytes(whole[:-cut])
        again = Journal(made.out)
        again.open({})
        assert again.last is not None
        assert again.last.number == 1
        assert again.positions == {f"{STREAM}/{EPOCH}": BATCH}
        again.close()
        journal.write_bytes(whole)


def test_damage_in_the_middle_of_a_journal_is_said(tmp_path: Path) -> None:
    made = output(tmp_path)
    table = open_table(made)
    table.open(SCHEMA)
    for batch in range(3):
        write_batch(table, batch)
    table.close()
    journal = next((Path(made.out) / "_meshmsg").glob("commits-*"))
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(bytes(data))
    with pytest.raises(LogError, match="damaged"):
        open_table(made).open(SCHEMA)


def test_journal_goes_on_in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_journal, "COMMITS_A_FILE", 3)
    made = output(tmp_path)
    for batch in range(8):
        table = open_table(made)
        table.open(SCHEMA)
        assert table.positions.get(f"{STREAM}/{EPOCH}", 0) == batch * BATCH
        write_batch(table, batch)
        table.close()
    assert [commit.number for commit in read_commits(made.out)] == list(range(1, 9))
    assert len(list((Path(made.out) / "_meshmsg").glob("commits-*"))) == 3


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    made = output(tmp_path)
    table = open_table(made)
    table.open(SCHEMA)
    with pytest.raises(ConfigError, match="another sink writes"):
        open_table(made).open(SCHEMA, wait_s=0)
    table.close()


def test_table_of_another_kind_is_refused(tmp_path: Path) -> None:
    table = open_table(output(tmp_path))
    table.open("a")
    table.close()
    with pytest.raises(ConfigError, match=r"partition_by.*was begun with"):
        open_table(output(tmp_path, partition_by=("topic",))).open("a")
    with pytest.raises(ConfigError, match=r"topics.*was begun with"):
        open_table(output(tmp_path, topics=("a.**",))).open("a")
    with pytest.raises(ConfigError, match="schema"):
        open_table(output(tmp_path)).open("b")


def test_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    made = output(tmp_path)
    Path(made.out).mkdir(parents=True)
    Path(made.out, "notes.txt").touch()
    with pytest.raises(ConfigError, match="not made by meshmsg sink"):
        open_table(made).open(SCHEMA)
