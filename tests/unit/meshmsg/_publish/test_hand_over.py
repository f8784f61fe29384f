"""After a send the processor is given away; after a yield that took long, not for a while."""

from __future__ import annotations

import pytest

from meshmsg import _platform
from meshmsg._platform import Platform
from meshmsg._publish import hand_over as module
from meshmsg._publish.hand_over import LONG_S, REST_S, HandOver


class Processor(Platform):
    """What others do with the processor while it is given to them."""

    def __init__(self) -> None:
        self.now = 100.0
        self.takes_s = 0.0
        self.yields = 0
        self.monotonic = lambda: self.now

    def give(self) -> None:
        self.yields += 1
        self.now += self.takes_s


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    made = Processor()
    monkeypatch.setattr(module, "sched_yield", made.give)
    return made


def hand_over(processor: Processor) -> HandOver:
    with _platform.entered(processor):
        return HandOver()


def test_who_takes_little_is_given_way_each_time(processor: Processor) -> None:
    processor.takes_s = LONG_S / 2
    hands = hand_over(processor)
    took_ns = [hands.give_way() for _ in range(10)]
    assert took_ns == pytest.approx([LONG_S / 2 * 1e9] * 10)
    assert processor.yields == 10


def test_after_somebody_took_long_nobody_is_given_way_for_a_while(processor: Processor) -> None:
    hands = hand_over(processor)
    processor.takes_s = 2 * LONG_S
    assert hands.give_way()  # that it takes long shows afterwards
    assert not hands.give_way()
    processor.now += REST_S / 2
    assert not hands.give_way()
    processor.now += REST_S
    assert hands.give_way()
    assert processor.yields == 2
