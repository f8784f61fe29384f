"""The benchmark of the log counts what it should; how fast is not a test."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.parametrize("way", ["plain", "log", "log_always", "sqlite", "sqlite_full", "replay"])
def test_each_way_writes_everything(tmp_path: Path, way: str) -> None:
    from benchmarks import log

    load = log.load_of(1024, 400_000)
    assert load.events == load.batches * 127
    assert getattr(log, way)(tmp_path, load) > 0


def test_load_is_the_same_bytes_for_everyone() -> None:
    from benchmarks import log

    payloads = log.load_of(64, 1_000_000).payloads()
    assert {len(payload) for payload in payloads} == {64}
    assert len(set(payloads)) == len(payloads)


def test_ratios_are_taken_round_by_round() -> None:
    from benchmarks import log

    figures = log.Figures()
    figures.seconds = {(64, log.LOG): [1.0, 10.0], (64, log.PLAIN): [0.5, 5.0]}
    assert figures.ratio(64, log.LOG, log.PLAIN) == 0.5


def test_live_delivery_is_measured_while_consumers_catch_up() -> None:
    from benchmarks import durable

    found = durable.under_replay(20_000, 2, 2000, 0.5, 60.0)
    assert found["caught_up"]
    assert found["problems"] == []
    assert found["alone"] > 0
    data = {"volatile": [2.0], "durable": [1.0], "single": {}, "replay": [found]}
    assert durable.targets(data)[1][2] == 1.0


def test_threads_are_measured() -> None:
    from benchmarks import durable

    assert durable.single_events(4, "always", 0.2) > 0


def test_logs_of_single_events_are_measured(tmp_path: Path) -> None:
    from benchmarks import section, single

    found: dict[str, list[float]] = {}
    for log, write in (
        (single.MANY, single.write_many),
        (single.FLAT_OUT, single.write_flat_out),
        (single.FRAMES, single.write_frames),
    ):
        folder = tmp_path / log.replace(" ", "-")
        folder.mkdir()
        write(folder, 4000)
        assert sum(single.frame_sizes(folder)) == 4000
        found[single.size(log)] = [single.bytes_of(folder) / 4000]
        found[single.replay(log)] = [single.replay_rate(folder)]
        assert found[single.replay(log)][0] > 0
    paced = tmp_path / "paced"
    paced.mkdir()
    single.write_paced(paced, 50)
    again = tmp_path / "again"
    again.mkdir()
    single.write_frames(again, 500, single.frame_sizes(paced))
    found |= {single.size(single.PACED): [100.0], single.replay(single.PACED): [2e6]}
    for threads in single.THREADS:
        for durable in (False, True):
            folder = tmp_path / f"{threads}-{durable}"
            folder.mkdir()
            rate = single.publish_rate(folder, durable, threads, 0.1)
            found[single.publish(durable, threads)] = [rate]
            assert rate > 0
    (table,) = section._single({"figures": found, "paced_events": 50})
    assert {row[4] for row in table.rows} <= {"met", "MISSED", "-"}
    assert sum(row[4] != "-" for row in table.rows) == len(single.GOALS)
