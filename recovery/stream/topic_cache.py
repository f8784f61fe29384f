"""Whether the topics of frames are taken, with what was found remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshmsg._model.topics import TopicFilter


class Verdicts(dict[tuple[str, ...], str]):
    """Whether `all`, `none` or `some` of a frame's topics are taken; most frames have the same few.

    A dict, because the compiled short way in looks a frame's topics up by itself.
    """

    #: Topics in all of the keys.
    TOPICS_MAX = 10_000
    #: Of a frame with more, the next one seldom has the same.
    FRAME_TOPICS_MAX = 64

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics = 0

    def judge(self, topics: tuple[str, ...], takes: Callable[[str], bool]) -> str:
        """Find the verdict on a frame's topics by what `takes` says of each, and remember it."""
        chosen = set(map(takes, topics))
        verdict = "some" if len(chosen) > 1 else "all" if chosen.pop() else "none"
        count = len(topics)
        if count <= self.FRAME_TOPICS_MAX:
            if self._topics + count > self.TOPICS_MAX:
                self.clear()
                self._topics = 0
            self[topics] = verdict
            self._topics += count
        return verdict


class TopicJudge:
    """Judges the topics of whole frames for a group."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.matches = TopicFilter(patterns).matches
        self._verdicts = Verdicts()

    def judge(self, topics: tuple[str, ...]) -> str:
        """Whether `all`, `none` or `some` of them are taken."""
        return self._verdicts.get(topics) or self._verdicts.judge(topics, self.matches)
