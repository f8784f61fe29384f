"""A recorder that answers before the publisher does not say where a subscription begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from meshmsg import Peer, Position, Tuning
from meshmsg._wire import control as c
from tests.attack.hostile import Attacker, Dialled, Said
from tests.scenarios.security.liars import STREAM, TOPIC
from tests.support.remote import RemotePeer

WAIT_S = 60.0
EVENTS = 10


@pytest.mark.parametrize(
    ("wanted", "lie", "first"), [("earliest", 7, 0), ("position", 7, 3), ("live", 0, EVENTS)]
)
def test_a_recorder_that_answers_first_does_not_move_the_start(
    attacker: Callable[[str], Attacker], wanted: str, lie: int, first: int
) -> None:
    with (
        RemotePeer("pub", streams=[{"topics": "a.**"}]) as pub,
        Peer("sub", connect=pub.address, discovery="none") as sub,
    ):
        pub.run("for n in range(count): peer.publish(topic, n)", topic=TOPIC, count=EVENTS)
        sub.wait_for_peers(1, timeout=WAIT_S)
        (link,) = sub._open_node().links.table.up()
        epoch = link.streams[STREAM].epoch
        liar = _liar(attacker(sub.address), link.streams[STREAM])
        told: list[int] = []

        def answers(who: bytes, said: c.Message) -> Iterable[Said]:
            if not isinstance(said, c.Subscribe):
                return
            told.append(said.sub)
            yield c.Subscribed(said.sub, STREAM, epoch, 0, lie, EVENTS, lie, recorded=True)

        liar.answers = answers
        assert liar.serve(WAIT_S, lambda: len(sub._open_node().links.table.up()) == 2)
        pub.stop()
        start = Position(STREAM, epoch, 3) if wanted == "position" else wanted
        with sub.subscribe("a.**", start=start) as events:
            assert liar.serve(WAIT_S, lambda: bool(told))
            assert events.get(timeout=0.5) is None
            pub.go_on()
            pub.run("peer.wait_for_subscribers(topic, timeout=60)", topic=TOPIC)
            pub.run("peer.publish(topic, count)", topic=TOPIC, count=EVENTS)
            found: list[int] = []
            while EVENTS not in found:
                event = events.get(timeout=WAIT_S)
                assert event is not None, found
                found.append(event.data)
            assert (found, events.losses) == (list(range(first, EVENTS + 1)), [])


@pytest.mark.parametrize("wanted", ["earliest", "last:5", "an earlier epoch"])
def test_a_start_that_only_a_recorder_claimed_is_forgotten_when_the_publisher_is_back(
    attacker: Callable[[str], Attacker], wanted: str
) -> None:
    """The recorder says that the stream begins late, and serves nothing of it."""
    tuning = Tuning(peer_timeout_s=0.5, ping_interval_s=0.1, repair_deadline_s=0.2)
    with (
        RemotePeer("pub", streams=[{"topics": "a.**"}]) as pub,
        Peer("sub", connect=pub.address, discovery="none", tuning=tuning) as sub,
    ):
        pub.run("for n in range(count): peer.publish(topic, n)", topic=TOPIC, count=EVENTS)
        sub.wait_for_peers(1, timeout=WAIT_S)
        table = sub._open_node().links.table
        (link,) = table.up()
        epoch = link.streams[STREAM].epoch
        liar = _liar(attacker(sub.address), link.streams[STREAM])

        def answers(who: bytes, said: c.Message) -> Iterable[Said]:
            if isinstance(said, c.Subscribe):
                yield c.Subscribed(said.sub, STREAM, epoch, 0, 7, EVENTS, 7, recorded=True)
            elif isinstance(said, c.Ping):
                yield c.Pong(said.number, liar.instance, [], [c.Tail(STREAM, epoch, 0, EVENTS)])

        liar.answers = answers
        assert liar.serve(WAIT_S, lambda: len(table.up()) == 2)
        pub.stop()
        assert liar.serve(WAIT_S, lambda: link.state != "up")
        start = Position(STREAM, epoch - 1, 3) if wanted.startswith("an") else wanted
        with sub.subscribe("a.**", start=start) as events:
            incoming = events._intake.incoming.by_name
            assert liar.serve(
                WAIT_S, lambda: STREAM in incoming and incoming[STREAM].receiver is not None
            )
            assert events.get(timeout=0) is None
            pub.go_on()
            assert liar.serve(WAIT_S, lambda: link.state == "up")
            pub.run("peer.wait_for_subscribers(topic, timeout=60)", topic=TOPIC)
            pub.run("peer.publish(topic, count)", topic=TOPIC, count=EVENTS)
            found: list[int] = []
            while EVENTS not in found:
                event = events.get(timeout=WAIT_S)
                assert event is not None, found
                found.append(event.data)
            first = 5 if wanted == "last:5" else 0
            assert (found, events.losses) == (list(range(first, EVENTS + 1)), [])


@pytest.fixture
def attacker() -> Iterator[Callable[[str], Attacker]]:
    made: list[Attacker] = []

    def make(address: str) -> Attacker:
        order = {"targets": {"sub": address}, "data": "", "messages": 0, "seed": 1}
        made.append(Attacker(order | {"streams": {}, "rate": 1e6, "seconds": WAIT_S}))
        return made[0]

    yield make
    for one in made:
        one.close()


def _liar(attacker: Attacker, info: c.StreamInfo) -> Dialled:
    """A peer that has a stream of its own, so that it is asked, and has recorded another's."""
    own = c.StreamInfo("mallory-1/a.x", "a.x", 1, "buffer", "msgpack", 1 << 20)
    return Dialled(attacker, ["sub"], streams=[own], recorded=[info])
