"""Work groups in processes of their own: workers killed, frozen, restarted, under load.

Every worker writes what it handles to a file, one line an event, before it acknowledges it: what
is in the files has happened, whatever became of the process.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream, Tuning
from tests.support.programs.crew import Line, lines_of
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

#: Nobody counts as gone because nothing was heard of it.
NO_SILENCE = Tuning(member_timeout_s=600.0, peer_timeout_s=600.0)


class Crew:
    """Workers in processes of their own, and their journals."""

    def __init__(self, folder: Path, addresses: list[str], pause: float, **options: Any) -> None:
        self._folder = folder
        self._addresses = addresses
        self._pause = pause
        self._options = options
        self._made = 0
        self.workers: list[RemotePeer] = []

    def start(self, count: int = 1) -> RemotePeer:
        for _ in range(count):
            self._made += 1
            worker = RemotePeer(f"worker{self._made}", connect=self._addresses)
            path = str(self._folder / f"{self._made}.journal")
            worker.use("crew")
            worker.run(f"work({path!r}, {self._pause}, **options)", options=self._options)
            self.workers.append(worker)
        return self.workers[-1]

    def kill_one(self, rng: random.Random) -> None:
        worker = self.workers.pop(rng.randrange(len(self.workers)))
        worker.kill()

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def lines(self) -> list[Line]:
        return sorted(line for path in self._folder.glob("*.journal") for line in lines_of(path))


@pytest.fixture
def hire(tmp_path: Path) -> Iterator[Callable[..., Crew]]:
    with ExitStack() as stack:

        def make(*addresses: str, pause: float = 0.0, **options: Any) -> Crew:
            crew = Crew(tmp_path, list(addresses), pause, **options)
            stack.callback(crew.close)
            return crew

        yield make


def group_of(boss: Peer | RemotePeer) -> dict[str, Any]:
    if isinstance(boss, RemotePeer):
        return dict(boss.eval("peer.stats()['streams']['jobs.**']['groups'][0]"))
    return dict(boss.stats()["streams"]["jobs.**"]["groups"][0])


def check_handled(lines: list[Line], streams: list[str], count: int) -> None:
    """Every job was handled, and whatever came again said so."""
    times: Counter[tuple[str, int]] = Counter()
    attempts: dict[tuple[str, int], set[int]] = defaultdict(set)
    for line in lines:
        job = (line.stream, line.seq)
        times[job] += 1
        assert line.attempt not in attempts[job], f"{job} twice under one attempt"
        attempts[job].add(line.attempt)
    for stream in streams:
        handled = {seq for name, seq in times if name == stream}
        assert handled == set(range(count)), f"{count - len(handled)} jobs of {stream} forgotten"


def check_order(lines: list[Line]) -> None:
    """Events of a key were in hand one after the other, in the order of the stream."""
    last: dict[tuple[str, str], int] = {}
    for line in lines:
        if line.key != "None":
            key = (line.stream, line.key)
            assert line.seq >= last.get(key, -1), f"{line} after {last[key]}"
            last[key] = line.seq


@pytest.mark.parametrize(
    ("jobs", "kills"),
    [
        pytest.param(5_000, 2, id="short"),
        pytest.param(100_000, 20, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_killed_workers_lose_no_job(
    jobs: int, kills: int, hire: Callable[..., Crew], ledger: Any
) -> None:
    """Two publishers, workers killed at random; keys on half of the jobs.

    The long form is the real one: 200,000 jobs over 8 workers.
    """
    rng = random.Random(jobs)
    stream = {"topics": "jobs.**", "overflow": "block", "groups": ["workers"]}
    with (
        RemotePeer("boss0", streams=[stream]) as one,
        RemotePeer("boss1", streams=[stream]) as two,
    ):
        crew = hire(one.address, two.address, prefetch=200, max_attempts=1000, order="key")
        crew.start(8 if kills > 2 else 4)
        for boss in (one, two):
            boss.use("loads")
            boss.send(f"publish_jobs({jobs})")
        step = jobs * 2 / (kills + 1)
        for n in range(kills):
            wait_until(lambda n=n: len_of(crew) >= step * (n + 0.5), 300)
            crew.kill_one(rng)
            crew.start()
        for boss in (one, two):
            boss.answer(300)
            boss.run("peer.flush(300)", timeout=320)
        rows = ledger(one.address, two.address)
        groups = [row for row in rows if row["subscription"] == "group workers"]
        assert [row["delivered"] for row in groups] == [jobs, jobs]
        assert all(row["dead"] == 0 and row["in_flight"] == 0 for row in groups)
        assert group_of(one)["timed_out"] + group_of(two)["timed_out"] == 0
        redelivered = group_of(one)["redelivered"] + group_of(two)["redelivered"]
        lines = crew.lines()
        check_handled(lines, ["boss0/jobs.**", "boss1/jobs.**"], jobs)
        check_order(lines)
        assert len(lines) - 2 * jobs <= redelivered
        assert redelivered >= sum(line.attempt > 1 for line in lines) > 0


def len_of(crew: Crew) -> int:
    """Lines in the journals, without reading them for their content."""
    return sum(path.read_bytes().count(b"\n") for path in crew._folder.glob("*.journal"))


def test_closed_connection_is_noticed_at_once(hire: Callable[..., Crew]) -> None:
    with (
        Peer("boss", streams=[Stream("jobs.**", groups="workers")], tuning=NO_SILENCE) as boss,
        Peer("spare", connect=boss.address) as spare,
    ):
        crew = hire(boss.address, pause=600.0)
        worker = crew.start()
        boss.wait_for_subscribers("jobs.x", timeout=30)
        boss.publish("jobs.x", "job")
        wait_until(lambda: crew.lines())
        with spare.subscribe("jobs.**", group="workers") as events:
            boss.wait_for_subscribers("jobs.x", count=2, timeout=30)
            worker.kill()
            event = events.get(60)
            assert event is not None
            assert event.attempt == 2
            events.ack(event)
            boss.flush(30)


def test_frozen_worker_is_replaced_and_comes_back(hire: Callable[..., Crew]) -> None:
    streams = [Stream("jobs.**", groups="workers")]
    with (
        Peer("boss", streams=streams, tuning=Tuning(peer_timeout_s=600.0)) as boss,
        Peer("spare", connect=boss.address) as spare,
    ):
        crew = hire(boss.address, pause=0.2)
        worker = crew.start()
        boss.wait_for_subscribers("jobs.x", timeout=30)
        boss.publish_many("jobs.x", range(4))
        wait_until(lambda: crew.lines())
        worker.stop()
        with spare.subscribe("jobs.**", group="workers") as events:
            event = events.get(60)
            assert event is not None
            assert event.attempt == 2
            events.ack(event)
            while group_of(boss)["acked"] < 4:
                found = events.get_many(10, timeout=0.2)
                if found:
                    events.ack(found)
        boss.flush(30)
        worker.go_on()
        wait_until(lambda: len(group_of(boss)["members"]) == 1, 30, "it is a member again")
        boss.publish("jobs.x", "afterwards")
        boss.flush(30)
        assert crew.lines()[-1].data == "afterwards"
        assert group_of(boss)["acked"] == 5


def test_workers_restarted_one_by_one_under_load(hire: Callable[..., Crew]) -> None:
    """No job is lost, order holds, and nobody waits for a silence."""
    streams = [Stream("jobs.**", groups="workers")]
    with Peer("boss", streams=streams, tuning=NO_SILENCE) as boss:
        crew = hire(boss.address, prefetch=8, order="key", pause=0.001)
        crew.start(2)
        boss.wait_for_subscribers("jobs.x", count=2, timeout=30)
        published = 0
        for _ in range(2):
            old = crew.workers.pop(0)
            old.send("peer.close()")
            begun = time.monotonic()
            while time.monotonic() - begun < 1.0:
                boss.publish("jobs.x", published, key=f"k{published % 20}")
                published += 1
                time.sleep(0.002)
            old.answer()
            old.close()
            crew.start()
        boss.flush(60)
        lines = crew.lines()
        check_handled(lines, ["boss/jobs.**"], published)
        check_order(lines)
        assert group_of(boss)["acked"] == published


def test_publisher_that_is_restarted_finds_its_workers_again(hire: Callable[..., Crew]) -> None:
    stream = {"topics": "jobs.**", "groups": ["workers"]}
    boss = RemotePeer("boss", streams=[stream])
    address = boss.address
    crew = hire(address)
    crew.start(2)
    boss.run("peer.publish_many('jobs.x', range(100)); peer.flush(30)")
    boss.kill()
    with RemotePeer("boss", streams=[stream], bind=address) as again:
        again.run("peer.publish_many('jobs.x', range(100, 200)); peer.flush(30)")
        assert group_of(again)["acked"] == 100
    assert sorted(int(line.data) for line in crew.lines()) == list(range(200))


def test_broken_connection_brings_the_work_to_a_member_again(tcp_proxy: Any) -> None:
    """Control and work connections are cut: the member joins anew, and nothing is forgotten."""
    with (
        Peer("boss", streams=[Stream("jobs.**", groups="workers")]) as boss,
        tcp_proxy(boss.address) as proxy,
        Peer("worker", connect=proxy.address) as worker,
        worker.subscribe("jobs.**", group="workers", prefetch=10) as events,
    ):
        boss.wait_for_subscribers("jobs.x", timeout=30)
        boss.publish_many("jobs.x", range(100))
        got = []
        while group_of(boss)["acked"] < 100:
            event = events.get(timeout=0.1)
            if event is not None:
                got.append(event)
                events.ack(event)
            if len(got) in (20, 60):
                proxy.cut()
        assert {event.data for event in got} == set(range(100))
        assert boss.ledger().reconciles


def test_late_ack_of_an_earlier_start_settles_nothing_of_the_next() -> None:
    """Numbers begin anew with each start of a publisher: event 0 then is not event 0 now."""
    streams = [Stream("jobs.**", groups="workers")]
    with Peer("worker") as worker, worker.subscribe("jobs.**", group="workers") as events:
        boss = Peer("boss", streams=streams, connect=worker.address).open()
        address = boss.address
        boss.publish("jobs.x", "then")
        then = events.get(30)
        with pytest.warns(RuntimeWarning, match="group workers"):
            boss.close(timeout=0)
        with Peer("boss", streams=streams, bind=address, connect=worker.address) as again:
            again.publish("jobs.x", "now")
            now = events.get(30)
            assert then is not None
            assert now is not None
            assert (then.data, now.data) == ("then", "now")
            assert then.position.seq == now.position.seq
            events.ack(then)
            events.nack(then)
            time.sleep(0.2)
            assert (group_of(again)["acked"], group_of(again)["in_flight"]) == (0, 1)
            events.ack(now)
            again.flush(30)
