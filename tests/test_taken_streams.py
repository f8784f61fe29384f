"""How many streams of others a peer takes."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from meshmsg._control import StreamInfo
from meshmsg._log_limit import LogLimit
from meshmsg._taken_streams import EACH_MAX, LEARNT_MAX, TOTAL_MAX, TakenStreams


class FakeLink:
    def __init__(self, peer: str, *, given: bool = False) -> None:
        self.peer, self.given = peer, given


def infos(peer: str, count: int, start: int = 0) -> list[StreamInfo]:
    names = (f"{peer}/{n}" for n in range(start, start + count))
    return [StreamInfo(name, "a.**", 1, "buffer", "msgpack", 1 << 20) for name in names]


def test_one_peer_has_so_many_under_whatever_names_and_others_theirs() -> None:
    counters: Counter[str] = Counter()
    taken = TakenStreams(LogLimit(logging.getLogger("meshmsg.peer"), counters), counters)
    liar: Any = FakeLink("liar")
    assert len(taken.allowed(liar, infos("liar", EACH_MAX - 1))) == EACH_MAX - 1
    assert len(taken.allowed(liar, infos("liar", 10, EACH_MAX))) == 1
    assert counters["streams_full"] == 9
    assert len(taken.allowed(liar, infos("liar", 10))) == 10  # those it has already
    other: Any = FakeLink("other")
    assert len(taken.allowed(other, infos("other", EACH_MAX))) == LEARNT_MAX - EACH_MAX
    late: Any = FakeLink("late")
    assert taken.allowed(late, infos("late", 1)) == []
    given: Any = FakeLink("given", given=True)
    assert len(taken.allowed(given, infos("given", EACH_MAX))) == TOTAL_MAX - LEARNT_MAX
