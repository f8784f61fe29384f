"""Spark's checkpoint of a sink: what it says, and when it is set aside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from meshmsg import ConfigError
from meshmsg.spark_sink.sink import checkpoint

OWNER = {"out": "/tables/a", "id": "1"}
OFFSET = {"shop/a.**/7": 5}


def write(folder: Path, batch: int, offset: Mapping[str, int] = OFFSET) -> None:
    files = {
        "metadata": '{"id":"x"}',
        f"offsets/{batch}": f"v1\n{{}}\n{json.dumps(offset)}",
        f"commits/{batch}": "v1\n{}",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def reconcile(folder: Path, owner: Mapping[str, str] = OWNER, ahead: bool = False) -> str:
    return checkpoint.reconcile(str(folder), dict(owner), lambda _: ahead)


def test_offsets_are_read_and_the_newest_batch_is_found(tmp_path: Path) -> None:
    assert checkpoint.newest_batch(str(tmp_path), "offsets") is None
    assert checkpoint.read_offset(str(tmp_path), 0) is None
    write(tmp_path, 9)
    write(tmp_path, 10)
    (tmp_path / "offsets" / ".11.tmp").touch()
    assert checkpoint.newest_batch(str(tmp_path), "offsets") == 10
    assert checkpoint.read_offset(str(tmp_path), 10) == OFFSET
    (tmp_path / "offsets" / "11").write_text("v1\n{}\n-")
    assert checkpoint.read_offset(str(tmp_path), 11) == {}


def test_offsets_of_two_sources_are_not_of_a_sink(tmp_path: Path) -> None:
    write(tmp_path, 0)
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n{}\n{}")
    with pytest.raises(ConfigError, match="one source"):
        checkpoint.read_offset(str(tmp_path), 0)


@pytest.mark.parametrize("name", ["metadata", "offsets/3", "commits/3"])
@pytest.mark.parametrize("text", ["", "v1", "v1\n{}\n{"])
def test_a_file_that_a_crash_cut_off_sets_the_checkpoint_aside(
    tmp_path: Path, name: str, text: str
) -> None:
    folder = tmp_path / "state"
    write(folder, 3)
    assert checkpoint.torn_file(str(folder)) == ""
    (folder / checkpoint.OWNER).write_text(json.dumps(OWNER))
    (folder / name).write_text(text)
    assert checkpoint.torn_file(str(folder)) == name
    assert f"{name} is empty or cut off" in reconcile(folder)
    assert checkpoint.owner_of(str(folder)) == OWNER
    assert len(list(tmp_path.glob("state.aside-*"))) == 1


def test_a_new_checkpoint_gets_its_owner_and_keeps_it(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert reconcile(folder) == ""
    write(folder, 0)
    assert reconcile(folder) == ""
    assert checkpoint.owner_of(str(folder)) == OWNER


def test_a_checkpoint_that_does_not_fit_the_table_is_set_aside(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    reconcile(folder)
    write(folder, 0)
    assert "the table lacks events" in reconcile(folder, ahead=True)
    write(folder, 0)
    assert "a table that is gone" in reconcile(folder, {**OWNER, "id": "2"})
    assert len(list(tmp_path.glob("state.aside-*"))) == 2


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    reconcile(tmp_path / "state")
    with pytest.raises(ConfigError, match="/tables/a"):
        reconcile(tmp_path / "state", {"out": "/tables/b", "id": "1"})
    write(tmp_path / "query", 0)
    with pytest.raises(ConfigError, match="no sink"):
        reconcile(tmp_path / "query")


def test_offset_of_another_kind_of_query_is_refused(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (offsets / "3").write_text('v1\n{}\n{"a/x.**/5": 7}')
    assert checkpoint.read_offset(str(tmp_path), 3) == {"a/x.**/5": 7}
    assert checkpoint.read_offset(str(tmp_path), 4) is None
    (offsets / "3").write_text('v1\n{}\n{"topic": {"0": 12}}')
    with pytest.raises(ConfigError, match="not a position"):
        checkpoint.read_offset(str(tmp_path), 3)
