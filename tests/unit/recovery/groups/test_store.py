"""Work groups beside a log: saved as a whole, read back, and what damage does to them."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from meshmsg._model.errors import LogError
from meshmsg.recovery.groups.group import WorkGroup
from meshmsg.recovery.groups.numbering import Line, Past, Shelf
from meshmsg.recovery.groups.resume import resume
from meshmsg.recovery.groups.store import RANGES_MAX, GroupRecord, GroupStore, decode_record
from meshmsg.recovery.log.faults import Crashed, Faults, FaultyFiles
from meshmsg.recovery.log.folder import LogFolder, decode_checked, encode_checked
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer

RECORD = GroupRecord(
    "billing",
    (7, 41),
    [(7, 50, 60), (8, 0, 3)],
    [(7, 44, 3)],
    "key",
    9,
    ("a.**", "b.*"),
    (3, 5),
    (8, 9),
    [(7, 44, 1)],
    [(8, 3, 9)],
)


def store_on(files: FaultyFiles) -> GroupStore:
    return GroupStore(LogFolder("log", files=files), "shop/a")


def test_group_is_read_back_as_it_was() -> None:
    files = FaultyFiles(Random(1))
    store_on(files).save(RECORD)
    store_on(files).save(GroupRecord("other/name with spaces", (0, 0)))
    found = store_on(files.survivor(power=True)).load()
    assert found == [RECORD, GroupRecord("other/name with spaces", (0, 0))]


@pytest.mark.parametrize("crash_after", range(0, 14, 1))
def test_crash_leaves_the_old_one_or_the_new_one(crash_after: int) -> None:
    files = FaultyFiles(Random(crash_after))
    store_on(files).save(RECORD)
    files.faults.crash_after = crash_after
    newer = GroupRecord("billing", (9, 1))
    try:
        store_on(files).save(newer)
        saved = True
    except Crashed:
        saved = False
    (found,) = store_on(files.survivor(power=True)).load()
    assert found in (RECORD, newer)
    assert found == newer or not saved


def test_every_damaged_byte_is_noticed_and_the_cursor_is_the_second_chance() -> None:
    files = FaultyFiles(Random(1))
    store = store_on(files)
    store.save(RECORD)
    path = "log/groups/billing.group"
    for offset in range(len(files.content(path))):
        files.flip(path, offset)
        assert store.load() == [GroupRecord("billing", (0, 0))], offset
        assert len(store.problems) == 1
        files.flip(path, offset)
    store.hold("billing", (7, 40), 1)
    files.flip(path, 20)
    assert store.load() == [GroupRecord("billing", (7, 40))]


def test_nonsense_with_a_good_check_is_refused() -> None:
    good = RECORD.encode()
    assert decode_record(good) == RECORD
    for record in (
        GroupRecord("x", (7, -1)),
        GroupRecord("x", (7, 1), [(7, 9, 9)]),
        GroupRecord("x", (7, 1), [(7, 9)]),  # type: ignore[list-item]
        GroupRecord("x", (7, 1), attempts=[("a", 1, 2)]),  # type: ignore[list-item]
        GroupRecord("x", (7, 1), order="random"),
        GroupRecord("x", (7, 1), max_attempts=0),
        GroupRecord("x", (7, 1), patterns=(1,)),  # type: ignore[arg-type]
    ):
        assert decode_record(record.encode()) is None


def test_only_so_many_ranges_are_remembered_the_lowest_first() -> None:
    ranges = [(7, 2 * n, 2 * n + 1) for n in range(RANGES_MAX + 10)]
    found = decode_record(GroupRecord("x", (7, 0), ranges).encode())
    assert found is not None
    assert found.settled == ranges[:RANGES_MAX]


def test_removed_group_is_gone_with_its_cursor() -> None:
    files = FaultyFiles(Random(1))
    store = store_on(files)
    store.save(RECORD)
    store.hold("billing", (7, 40), 1)
    store.remove("billing")
    assert store.load() == []
    assert store._cursors.held() is None


def test_full_disk_says_so_and_keeps_the_old_one() -> None:
    files = FaultyFiles(Random(1))
    store = store_on(files)
    store.save(RECORD)
    files.faults = Faults(capacity_bytes=files.used_bytes())
    with pytest.raises(LogError, match="could not be saved"):
        store.save(GroupRecord("billing", (9, 1)))
    files.faults = Faults()
    assert store.load() == [RECORD]


def test_file_of_an_earlier_release_names_no_members() -> None:
    fields = decode_checked(RECORD.encode())
    assert fields is not None
    del fields["members"]
    assert decode_record(encode_checked(fields)) == dataclasses.replace(RECORD, members=())


@pytest.mark.parametrize("members", [None, 3, [-1], [1 << 63], ["x"], [[1]]])
def test_members_that_make_no_sense_are_damage(members: object) -> None:
    fields = decode_checked(RECORD.encode())
    assert fields is not None
    assert decode_record(encode_checked({**fields, "members": members})) is None


def test_group_of_an_earlier_release_has_no_mark_and_goes_on() -> None:
    fields = decode_checked(RECORD.encode())
    assert fields is not None
    for name in ("dealt", "spared", "doubtful", "members"):
        del fields[name]
        record = decode_record(encode_checked(fields))
        assert record is not None
        assert record.dealt is None
    assert dataclasses.replace(RECORD, dealt=None, spared=[], doubtful=[], members=()) == record
    buffer = RetransmitBuffer(1000)
    line = Line(9, 0, [Past(7, 41, 70), Past(8, 0, 20)])
    group = WorkGroup("billing", buffer, line.start, shelf=Shelf(buffer, line, durable=True))
    resume(group, record)
    assert group.dealt == 0, "all that was published before may have been given to somebody"
    group.doubt()
    assert group.doubtful == [], "and nobody knows what was"
    resume(group, RECORD)
    assert group.dealt == line.number(8, 9)


@pytest.mark.parametrize("field", ["dealt", "spared", "doubtful"])
@pytest.mark.parametrize("value", [[1], [[1]], "x", [-1, 2], [[1, 5, 5]], {"a": 1}, 7])
def test_marks_that_make_no_sense_are_damage(field: str, value: object) -> None:
    fields = decode_checked(RECORD.encode())
    assert fields is not None
    if field == "spared" and value == [[1, 5, 5]]:
        return  # five attempts of an event
    assert decode_record(encode_checked(fields | {field: value})) is None
