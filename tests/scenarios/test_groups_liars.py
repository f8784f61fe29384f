"""Members that lie about what they have done and have: they settle nothing that was not theirs.

Beside them, honest workers get every event, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshmsg import Peer, Stream, Subscription
from meshmsg._wire import control as c
from meshmsg.recovery.groups.recall import AHEAD_MIN
from tests.scenarios.test_groups_bad_input import Stranger, join
from tests.support.ports import free_port
from tests.support.programs.crew import lines_of
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

JOBS = 1000
FAR = 1 << 62
STREAM = "boss/jobs.**"


def durable() -> Stream:
    return Stream("jobs.**", durability="log", groups=("workers",))


def group_of(boss: Peer) -> dict[str, Any]:
    return dict(boss.stats()["streams"]["jobs.**"]["groups"][0])


def lies(epoch: int) -> list[c.Claimed]:
    """Every kind of claim, true of nobody."""
    everything = [(0, FAR, 1)]
    return [
        c.Claimed(STREAM, epoch, acks=everything),
        c.Claimed(STREAM, epoch, acks=[(0, FAR, 2), (7, 9, 1_000_000)]),
        c.Claimed(STREAM, epoch, held=everything),
        c.Claimed(STREAM, epoch, held=[(0, FAR, n) for n in range(1, 200)]),
        c.Claimed(STREAM, epoch, nacks=[c.Refusal(n, 1, error="no") for n in range(500)]),
        c.Claimed(STREAM, epoch, acks=[(JOBS, JOBS + 50, 1)], held=[(JOBS, FAR, 1)]),
        c.Claimed(STREAM, epoch - 1, acks=everything, held=everything),
        c.Claimed(STREAM, epoch + 1, acks=everything, held=everything),
    ]


def settlements(epoch: int) -> list[c.Settlement]:
    """The same without joining anew."""
    claims = [claim for claim in lies(epoch) if claim.epoch == epoch]
    return [c.Settlement(STREAM, epoch, claim.acks, claim.nacks, claim.held) for claim in claims]


@contextmanager
def strangers(*addresses: str) -> Iterator[list[Stranger]]:
    found = [Stranger(address) for address in addresses]
    try:
        yield found
    finally:
        for stranger in found:
            stranger.close()


def work_off(events: Subscription, count: int) -> list[tuple[int, int]]:
    """Do so many jobs; their numbers and attempts."""
    done = []
    while len(done) < count:
        event = events.get(timeout=30)
        assert event is not None, f"{len(done)} of {count} came"
        done.append((event.data, event.attempt))
        events.ack(event)
    return done


def test_liars_settle_nothing_and_honest_members_get_everything_once(tmp_path: Path) -> None:
    with (
        Peer("boss", streams=[durable()], data_dir=tmp_path) as boss,
        Peer("worker", connect=boss.address) as worker,
        strangers(boss.address) as (liar,),
    ):
        epoch = boss.publish_many("jobs.x", list(range(JOBS))).epoch
        for claim in lies(epoch):
            liar.say(join(claims=[claim], prefetch=100_000))
            assert isinstance(liar.hear(), c.Joined)
            liar.say(c.Settle(7, settlements(epoch)))
            liar.say(c.Settle(7, [], closed=True))
        wait_until(lambda: group_of(boss)["members"] == [])
        assert group_of(boss)["acked"] == 0
        with worker.subscribe("jobs.**", group="workers", prefetch=50) as events:
            first = work_off(events, 100)
            held = events.get(timeout=30)
            assert held is not None
            before = boss.stats()["counters"]["stale_acks"]
            liar.say(join(sub=8, claims=lies(epoch), prefetch=100_000))
            answer = liar.hear()
            while not isinstance(answer, c.Joined):
                answer = liar.hear()
            liar.say(c.Settle(8, settlements(epoch)))
            wait_until(lambda: boss.stats()["counters"]["stale_acks"] > before)
            events.ack(held)
            rest = work_off(events, JOBS - 101)
            assert events.get(timeout=0.1) is None
            wait_until(lambda: group_of(boss)["lag"] == 0)
        everything = [*first, (held.data, held.attempt), *rest]
        assert sorted(everything) == [(n, 1) for n in range(JOBS)]
        group, counters = group_of(boss), boss.stats()["counters"]
        assert (group["acked"], group["dead"], group["recalled"]) == (JOBS, 0, 0)
        assert counters.get("io_errors", 0) == 0
        assert counters["stale_acks"] < 10**7, "counted by what there is"


@pytest.mark.parametrize("sub", [7, FAR - 1])
def test_acks_of_strangers_do_not_outgrow_the_figures(tmp_path: Path, sub: int) -> None:
    with Peer("boss", streams=[durable()], data_dir=tmp_path) as boss:
        epoch = boss.publish("jobs.x", 1).epoch
        with strangers(boss.address) as (liar,):
            far = (1 << 63) - 1
            names = (STREAM, "nobody/x")
            said = [c.Settlement(name, epoch, [(0, far, 1)] * 500) for name in names]
            for _ in range(20):
                liar.say(c.Settle(sub, said))
            wait_until(lambda: boss.stats()["counters"].get("stale_acks", 0) >= 20)
            liar.say(c.Ask(1, "stats"))
            wait_until(lambda: isinstance(liar.hear(), c.Answer))


def test_nobody_takes_the_place_of_a_member_by_its_number(tmp_path: Path) -> None:
    with (
        Peer("boss", streams=[durable()], data_dir=tmp_path) as boss,
        Peer("worker", connect=boss.address) as worker,
        worker.subscribe("jobs.**", group="workers") as events,
        strangers(boss.address) as (liar,),
    ):
        epoch = boss.publish_many("jobs.x", list(range(10))).epoch
        held = events.get(timeout=30)
        assert held is not None
        claims = [c.Claimed(STREAM, epoch, acks=[(0, 10, 1)])]
        liar.say(join(sub=events._intake.sub, claims=claims))
        answer = liar.hear()
        assert isinstance(answer, c.Unjoined)
        assert answer.refused
        events.ack(held)
        assert sorted(work_off(events, 9)) == [(n, 1) for n in range(1, 10)]


class Boss:
    """A publisher that can be killed."""

    def __init__(self, data_dir: Path, address: str, count: int, wait_s: float = 60.0) -> None:
        stream = {"topics": "jobs.**", "durability": "log", "fsync": "always"}
        self._peer = RemotePeer(
            "boss",
            bind=address,
            streams=[stream | {"groups": ["workers"]}],
            data_dir=str(data_dir),
            tuning={"member_return_s": wait_s},
        )
        self._peer.run(f"for n in range({count}): last = peer.publish('jobs.x', n)")
        self.epoch = int(self._peer.eval("last.epoch")) if count else 0

    def ask(self) -> dict[str, int]:
        group = self._peer.eval("peer.stats()['streams']['jobs.**']['groups'][0]")
        found = {name: int(group[name]) for name in ("awaited", "lag", "acked")}
        return {**found, "members": len(group["members"])}

    def kill(self) -> None:
        self._peer.kill()


def test_liar_that_is_awaited_settles_no_more_than_was_dealt_out(tmp_path: Path) -> None:
    """It was a member with ten events when the publisher was killed, and says it did all."""
    address = f"tcp://127.0.0.1:{free_port()}"
    prefetch = 10
    boss = Boss(tmp_path, address, JOBS)
    context: Any = zmq.Context()
    try:
        with strangers(address) as (liar,):
            liar.say(join(prefetch=prefetch))
            answer = liar.hear()
            assert isinstance(answer, c.Joined)
            pull = context.socket(zmq.PULL)
            pull.connect(answer.work[0][1])
            assert pull.poll(30_000), "it is a member, and has work"
        boss.kill()
        epoch, boss = boss.epoch, Boss(tmp_path, address, 0)
        assert boss.ask()["awaited"] == 1
        with strangers(address) as (liar,):
            liar.say(join(prefetch=prefetch, claims=lies(epoch)))
            wait_until(lambda: boss.ask()["awaited"] == 0)
            liar.say(c.Settle(7, [], closed=True))
            stolen = boss.ask()["acked"]
        assert prefetch <= stolen <= AHEAD_MIN, "what was dealt out, and what could be next"
        with (
            Peer("worker", connect=address) as worker,
            worker.subscribe("jobs.**", group="workers") as events,
        ):
            done = work_off(events, JOBS - stolen)
            wait_until(lambda: boss.ask()["lag"] == 0)
        assert sorted(n for n, _ in done) == list(range(stolen, JOBS))
    finally:
        context.destroy(linger=0)
        boss.kill()


def test_what_may_come_again_after_both_were_killed_says_so(tmp_path: Path) -> None:
    """Publisher and worker are killed at once: nobody knows what was done last."""
    address = f"tcp://127.0.0.1:{free_port()}"
    journals = [tmp_path / "0.journal", tmp_path / "1.journal"]

    def start_worker(journal: Path) -> RemotePeer:
        worker = RemotePeer("worker", connect=address)
        worker.use("crew")
        worker.run(f"work({str(journal)!r}, 0.001, order='key', prefetch=20)")
        return worker

    boss = Boss(tmp_path / "data", address, JOBS)
    worker = start_worker(journals[0])
    try:
        wait_until(lambda: journals[0].exists() and len(lines_of(journals[0])) > 100)
        worker.kill()
        boss.kill()
        boss = Boss(tmp_path / "data", address, 0, wait_s=1.0)
        worker = start_worker(journals[1])
        wait_until(lambda: boss.ask()["lag"] == 0, 120)
    finally:
        worker.kill()
        boss.kill()
    before, after = (
        {line.data: line.attempt for line in lines_of(journal)} for journal in journals
    )
    assert before.keys() | after.keys() == set(map(str, range(JOBS)))
    unsaid = [n for n in before.keys() & after.keys() if after[n] <= before[n]]
    assert not unsaid, "they came again, and do not say so"
    assert set(after.values()) <= {1, 2}
