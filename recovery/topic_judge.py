"""Whether a group takes the topics of a frame, with what was found remembered."""

from __future__ import annotations

from collections.abc import Iterable

from meshmsg._topics import TopicFilter

VERDICTS_MAX = 10_000


class TopicJudge:
    """Judges the topics of whole frames, which mostly are the same few."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.matches = TopicFilter(patterns).matches
        self._verdicts: dict[tuple[str, ...], str] = {}

    def judge(self, topics: tuple[str, ...]) -> str:
        """Whether `all`, `none` or `some` of them are taken."""
        verdict = self._verdicts.get(topics)
        if verdict is None:
            chosen = {self.matches(topic) for topic in topics}
            verdict = "some" if len(chosen) > 1 else "all" if chosen.pop() else "none"
            if len(self._verdicts) > VERDICTS_MAX:
                self._verdicts.clear()
            self._verdicts[topics] = verdict
        return verdict
