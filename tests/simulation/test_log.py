"""A log on a failing disk, by seed: what was acknowledged is there, whatever crashed when.

`LOG_SEEDS` says how many worlds are tried.  A failure prints its seed; that seed then becomes a
named test below.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from meshmsg._model.event import Loss
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.format import DATA_START, END_RECORD, parse_name
from meshmsg.recovery.log.segment import Segment
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import (
    DATA,
    STREAM,
    Place,
    closed_log,
    items_of,
    simulate,
)

SEEDS = int(os.environ.get("LOG_SEEDS", "300"))
CHUNK = 50

pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.mark.parametrize("growth", [1, 4])
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_acknowledged_events_outlive_every_crash(first: int, growth: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        simulate(seed, growth=growth)


# Seeds that found something ---------------------------------------------------------------------


def test_torn_record_at_the_live_edge_is_not_reported_as_lost() -> None:
    """A head whose content was not written yet looked like damage."""
    simulate(172)


def test_segment_that_could_not_be_begun_takes_the_place_of_nothing() -> None:
    """Its name came back after a crash, and hid what the segment before it went on with."""
    simulate(57)


def test_what_stays_is_safe_before_anything_expires() -> None:
    """Retention removed old segments, and then a crash took the new ones."""
    simulate(80)


def test_segment_whose_head_a_crash_took_does_not_hide_the_tail() -> None:
    """Recovery took it for damaged, and removed the tail that had its events."""
    simulate(165)


def test_record_that_a_crash_tore_before_the_end_of_its_segment_is_in_the_tail() -> None:
    """Its head was whole and its content was not: readers did not look there."""
    simulate(2261)


def test_event_that_was_refused_is_never_found_in_the_place_of_another() -> None:
    """A write failed when all was written but zeros, and could not be cut off before the crash."""
    simulate(3549)


# Flipped bytes ----------------------------------------------------------------------------------


def spans_of(files: FaultyFiles) -> list[tuple[str, int, int, set[Place]]]:
    """File, start, stop and events of every record."""
    folder = LogWriter(DATA, STREAM, files=files).folder
    found = []
    for name in folder.segments():
        segment = Segment.open(files, folder.path, name)
        offset = DATA_START
        while True:
            record = segment.record(offset)
            assert record is not None
            if record.kind == END_RECORD:
                break
            places = {(name.epoch, seq) for seq in range(record.first, record.stop)}
            found.append((f"{folder.path}/{name.file}", offset, record.end, places))
            offset = record.end
    return found


def check_flipped(files: FaultyFiles, events: dict[Place, bytes], damaged: set[Place]) -> None:
    """Each event is read as it was or stands in a loss, and only damaged ones are lost."""
    items = items_of(files, min(events))
    lost: list[Place] = []
    found: list[Place] = []
    for item in items:
        if isinstance(item, Loss):
            assert item.reason == "corrupt"
            lost += [(item.epoch, seq) for seq in range(item.first, item.stop)]
        else:
            place, payload = item  # type: ignore[misc]
            assert events[place] == payload
            found.append(place)
    assert found == sorted(set(found))
    assert set(lost) <= damaged
    assert set(found) | set(lost) == set(events)
    assert len(found) + len(lost) == len(events)


@pytest.mark.parametrize("chunk", range(6))
def test_flipped_bytes_are_reported_as_exact_ranges(chunk: int) -> None:
    for seed in range(chunk * 25, chunk * 25 + 25):
        files, events = closed_log(seed)
        rng = Random(seed)
        spans = spans_of(files)
        paths = [path for path in files.paths() if not path.endswith("lock")]
        damaged: set[Place] = set()
        heads: set[str] = set()
        for _ in range(rng.choice([1, 1, 2, 5])):
            path = rng.choice(paths)
            size = len(files.content(path))
            offset = rng.randrange(size)
            if offset < DATA_START and parse_name(path.rpartition("/")[2]):
                if path in heads:
                    continue  # one of the two copies of a head has to be left
                heads.add(path)
            files.flip(path, offset, rng.randrange(1, 256))
            for file, start, stop, places in spans:
                if file == path and start <= offset < stop:
                    damaged |= places
        if sum("epochs" in path for path in paths) < 2:
            continue
        check_flipped(files, events, damaged)


def test_zeroed_page_loses_what_was_in_it_and_nothing_else() -> None:
    for seed in range(40):
        files, events = closed_log(seed)
        rng = Random(seed)
        spans = spans_of(files)
        path, _, _, _ = rng.choice(spans)
        size = len(files.content(path))
        start = rng.randrange(DATA_START, size) // 512 * 512
        stop = min(size, start + 512)
        damaged = {
            p for f, a, b, places in spans if f == path and a < stop and start < b for p in places
        }
        for offset in range(max(start, DATA_START), stop):
            files.flip(path, offset, files.content(path)[offset])
        check_flipped(files, events, damaged)


def test_segment_without_any_head_is_lost_as_a_whole_and_the_rest_is_read() -> None:
    files, events = closed_log(5)
    spans = spans_of(files)
    path = spans[0][0]
    for offset in (0, 2048):
        files.flip(path, offset)
    damaged = {place for file, _, _, places in spans if file == path for place in places}
    check_flipped(files, events, damaged)


def test_unreadable_places_are_passed_over() -> None:
    files, events = closed_log(3)
    files.faults.read_error = 0.3
    for _ in range(20):
        for item in items_of(files, min(events)):
            if not isinstance(item, Loss):
                place, payload = item  # type: ignore[misc]
                assert events[place] == payload
