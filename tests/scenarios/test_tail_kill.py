"""Publishers of single events, flat out, are killed: all that they acknowledged is there.

Each event stands only in the log's mapped tail at first, so most kills leave some there.
"""

from __future__ import annotations

import mmap
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshmsg import Peer, Stream
from meshmsg._model.event import Loss
from meshmsg.recovery.log.folder import find_logs
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.tail import TAIL_FILE
from meshmsg.recovery.log.verify import verify
from tests.scenarios.multicast.conftest import new_group
from tests.support import processes
from tests.support.programs.tail_publisher import WORD, acknowledged, event_of
from tests.support.waiting import wait_until

ROUNDS = 3
EACH = 30_000
#: A kill comes when less than so many are published.
KILL_BEFORE = {"batch": 4000, "never": 4000, "always": 75}

#: By the payload: the epoch and number of each event that was acknowledged.
Acked = dict[bytes, tuple[int, int]]


def one_life(data_dir: Path, acks: Path, settings: dict[str, Any], least: int) -> Acked:
    """Start a publisher, and kill it when it has published so many; what it acknowledged."""
    threads, each, mix = settings["threads"], settings["each"], settings["mix"]
    with acks.open("wb") as file:
        file.truncate((1 + threads * each) * WORD)
    child = processes.start(processes.program("tail_publisher", data_dir, acks, repr(settings)))
    with (
        acks.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as raw,
        raw.cast("Q") as words,
    ):
        wait_until(lambda: child.poll() is not None or words[1 + least])
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        return {
            event_of(thread, n, mix)[0]: (words[0], seq)
            for thread, n, seq in acknowledged(words, each)
        }


def in_log(data_dir: Path) -> dict[tuple[int, int], bytes]:
    """All that a reader finds: each event once, in order, and no loss."""
    found: dict[tuple[int, int], bytes] = {}
    last = (0, 0)
    with LogReader(find_logs(str(data_dir))[0]) as reader:
        reader.seek_earliest()
        for item in reader.runs():
            assert not isinstance(item, Loss), item
            frame, first = item.frame, item.frame.first + item.lo
            assert (frame.epoch, first) == (last if frame.epoch == last[0] else (frame.epoch, 0))
            for n, payload in enumerate(frame.payloads.split(item.lo, item.hi)):
                found[frame.epoch, first + n] = payload
            last = (frame.epoch, frame.stop)
    return found


@pytest.mark.parametrize(
    ("threads", "mix", "fsync"),
    [(1, False, "batch"), (8, True, "batch"), (8, True, "always"), (1, True, "never")],
)
def test_killed_publisher_has_kept_all_that_it_acknowledged(
    tmp_path: Path, threads: int, mix: bool, fsync: str
) -> None:
    kill_some(tmp_path, threads=threads, mix=mix, fsync=fsync)


def test_killed_multicast_publisher_has_too(tmp_path: Path) -> None:
    kill_some(tmp_path, threads=8, mix=True, group=new_group())


def test_killed_publisher_without_the_compiled_core_has_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHMSG_PURE", "1")
    kill_some(tmp_path, threads=3, mix=True)


def kill_some(
    tmp_path: Path,
    *,
    threads: int,
    mix: bool,
    fsync: str = "batch",
    group: str | None = None,
    rounds: int = ROUNDS,
) -> None:
    """Kill a publisher some times, look at what each kill left, and deliver all in the end."""
    rng = Random(threads)
    data_dir = tmp_path / "data"
    settings = {"threads": threads, "each": EACH, "fsync": fsync, "mix": mix, "group": group}
    known: dict[tuple[int, int], bytes] = {}
    in_tail = 0
    before = KILL_BEFORE[fsync] // threads
    for _ in range(rounds):
        acked = one_life(data_dir, tmp_path / "acks", settings, rng.randrange(before))
        assert acked
        assert len(set(acked.values())) == len(acked), "a number was given twice"
        found = in_log(data_dir)  # as the kill left it
        assert {place: found.get(place) for place in acked.values()} == {
            place: data for data, place in acked.items()
        }
        assert known.items() <= found.items()
        last, _ = max(found)
        payloads = [data for (epoch, _), data in found.items() if epoch == last]
        assert len(set(payloads)) == len(payloads), "an event is there twice"
        known = found
        (folder,) = find_logs(str(data_dir))
        in_tail += Path(folder.path, TAIL_FILE).exists()
        assert verify(folder).is_good
    assert in_tail == rounds
    deliver(data_dir, known)
    assert in_log(data_dir).items() >= known.items()
    assert verify(find_logs(str(data_dir))[0]).is_good


def deliver(data_dir: Path, known: dict[tuple[int, int], bytes]) -> None:
    """A subscriber that was never there gets exactly what the log has."""
    got: dict[tuple[int, int], bytes] = {}
    with (
        Peer("victim", streams=[Stream("a.**", durability="log")], data_dir=data_dir) as pub,
        Peer("late", connect=pub.address) as sub,
        sub.subscribe("a.**", start="earliest") as events,
    ):
        while len(got) < len(known):
            batch = events.get_many(10_000, timeout=30)
            assert batch, f"{len(got)} of {len(known)}"
            for event in batch:
                place = (event.position.epoch, event.position.seq)
                assert place not in got
                got[place] = event.data
                check_notes(event)
        assert events.losses == []
    assert got == known


def check_notes(event: Any) -> None:
    """Key and headers are those of the event, which its payload names."""
    thread, n = map(int, event.data.split(b" ", 2)[:2])
    for mix in (False, True):
        data, key, headers = event_of(thread, n, mix)
        noted = (event.key, event.headers) == (key, headers)
        if event.data == data and (noted or event.topic == "a.many"):
            return
    raise AssertionError(f"event {n} of thread {thread} has key {event.key!r}, {event.headers!r}")
