"""How many streams of others a peer takes."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from meshmsg._links.taken_streams import TakenStreams
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire.control import StreamInfo


class FakeLink:
    def __init__(self, peer: str, *, given: bool = False) -> None:
        self.peer, self.given = peer, given
        self.untaken: set[str] = set()


def infos(peer: str, count: int, start: int = 0) -> list[StreamInfo]:
    names = (f"{peer}/{n}" for n in range(start, start + count))
    return [StreamInfo(name, "a.**", 1, "buffer", "msgpack", 1 << 20) for name in names]


def taken_streams(streams_max: int) -> tuple[TakenStreams, Counter[str]]:
    counters: Counter[str] = Counter()
    notes = LogLimit(logging.getLogger("meshmsg.peer"), counters)
    return TakenStreams(notes, counters, streams_max), counters


def test_one_peer_has_so_many_under_whatever_names_and_others_theirs() -> None:
    taken, counters = taken_streams(15_000)
    liar: Any = FakeLink("liar")
    assert len(taken.allowed(liar, infos("liar", 4999))) == 4999
    assert len(taken.allowed(liar, infos("liar", 10, 5000))) == 1
    assert counters["streams_full"] == 9
    assert liar.untaken == {f"liar/{n}" for n in range(5001, 5010)}
    assert len(taken.allowed(liar, infos("liar", 10))) == 10  # those it has already
    other: Any = FakeLink("other")
    assert len(taken.allowed(other, infos("other", 6000))) == 5000
    late: Any = FakeLink("late")
    assert taken.allowed(late, infos("late", 1)) == []
    given: Any = FakeLink("given", given=True)
    assert len(taken.allowed(given, infos("given", 6000))) == 5000


def test_place_is_given_back_when_nobody_has_the_stream() -> None:
    taken, _ = taken_streams(6)
    one: Any = FakeLink("one")
    two: Any = FakeLink("two")
    three: Any = FakeLink("three")
    assert len(taken.allowed(one, infos("one", 3))) == 2
    assert len(taken.allowed(two, infos("two", 2))) == 2
    assert not taken.has_room(three)
    taken.keep({"one/0", "two/0", "two/1"})
    assert len(taken) == 3
    assert taken.has_room(one)
    assert not taken.has_room(two)  # it has all that one peer may have
    assert len(taken.allowed(three, infos("three", 2))) == 1
