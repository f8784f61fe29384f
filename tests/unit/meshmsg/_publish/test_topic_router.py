"""Which stream a topic goes to, and when streams are in a rush."""

from __future__ import annotations

import pytest

from meshmsg import Peer, Stream, TopicError
from meshmsg._publish.publisher import RUSH_GAP_NS
from meshmsg._publish.topic_router import RUSH_DUES, Routes, Rush


def routes(*patterns: str) -> Routes[str]:
    found = Routes[str]()
    for pattern in patterns:
        found.add(pattern, pattern)
    return found


@pytest.mark.parametrize(
    ("patterns", "topic", "target"),
    [
        (("a.b", "a.**"), "a.b", "a.b"),
        (("a.**", "a.b"), "a.b", "a.**"),
        (("x.*", "a.b", "**"), "a.b", "a.b"),
        (("x.*", "a.b", "**"), "x.y", "x.*"),
        (("x.*", "a.b", "**"), "c", "**"),
        (("a.b",), "a.c", None),
        ((), "a", None),
    ],
)
def test_the_first_declared_that_matches_takes_a_topic(
    patterns: tuple[str, ...], topic: str, target: str | None
) -> None:
    assert routes(*patterns).find(topic) == target


def test_malformed_pattern_is_refused() -> None:
    with pytest.raises(TopicError):
        routes("a..b")


def test_a_rush_is_many_dues_in_a_row_and_ends_with_a_pause() -> None:
    rush = Rush(RUSH_GAP_NS)
    now = 10**18
    assert not any(rush.is_on(now + n * (RUSH_GAP_NS - 1)) for n in range(RUSH_DUES + 1))
    now += RUSH_DUES * (RUSH_GAP_NS - 1)
    assert rush.is_on(now + 1)
    assert not rush.is_on(now + 1 + RUSH_GAP_NS)  # a pause
    assert not rush.is_on(now)  # a clock that was set back


def test_a_rush_goes_on_over_what_a_thread_did_not_run() -> None:
    rush = Rush(RUSH_GAP_NS)
    now = 10**18
    for _ in range(RUSH_DUES + 1):
        assert not rush.is_on(now)
        rush.pass_over(2 * RUSH_GAP_NS)
        now += 3 * RUSH_GAP_NS - 1
    assert rush.is_on(now)


def test_events_of_many_streams_in_turn_share_frames_and_all_arrive_in_order() -> None:
    count, each = 50, 400
    topics = [f"many.s{n}" for n in range(count)]
    with (
        Peer("writer", streams=[Stream(topic) for topic in topics]) as writer,
        Peer("reader", connect=writer.address) as reader,
        reader.subscribe("many.**") as events,
    ):
        for topic in topics:
            writer.wait_for_subscribers(topic, timeout=60)
        for n in range(each):
            for topic in topics:
                writer.publish(topic, n)
        seen = dict.fromkeys(topics, 0)
        for _ in range(count * each):
            event = events.get(timeout=60)
            assert event is not None
            assert event.data == seen[event.topic]
            seen[event.topic] += 1
        # After it a single event goes its way without waiting for a next one.
        writer.publish(topics[0], "last")
        last = events.get(timeout=60)
        assert last is not None
        assert last.data == "last"
        frames = sum(stream["frames"] for stream in writer.stats()["streams"].values())
        assert frames < count * each / 2
        assert not events.losses
