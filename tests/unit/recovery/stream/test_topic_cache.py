"""What is remembered of the topics of frames, and what it may take."""

from __future__ import annotations

from meshmsg._model.topics import TopicFilter
from meshmsg.recovery.stream.topic_cache import TopicJudge, Verdicts

takes = TopicFilter(["a.**"]).matches


def test_verdicts_are_all_none_or_some_and_found_again() -> None:
    verdicts = Verdicts()
    for topics, verdict in [(("a.b",), "all"), (("b",), "none"), (("a.b", "b"), "some")]:
        assert verdicts.judge(topics, takes) == verdict
        assert verdicts[topics] == verdict
        assert TopicJudge(["a.**"]).judge(topics) == verdict


def test_topics_are_counted_not_frames() -> None:
    verdicts = Verdicts()
    for number in range(2000):
        verdicts.judge(tuple(f"a.{number}.{n}" for n in range(50)), takes)
        assert sum(map(len, verdicts)) <= verdicts.TOPICS_MAX
    assert sum(map(len, verdicts)) > verdicts.TOPICS_MAX // 2


def test_frames_of_many_topics_are_judged_each_time() -> None:
    verdicts = Verdicts()
    many = tuple(f"a.{n}" for n in range(65))
    assert verdicts.judge(many, takes) == "all"
    assert not verdicts
    assert verdicts.judge(many[:64], takes) == "all"
    assert len(verdicts) == 1


def test_group_remembers_within_the_same_bounds() -> None:
    judge = TopicJudge(["a.**"])
    for number in range(300):
        assert judge.judge(tuple(f"a.{number}.{n}" for n in range(4000))) == "all"
    assert not judge._verdicts
