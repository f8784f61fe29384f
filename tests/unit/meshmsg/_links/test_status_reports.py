"""Reports to publishers are made some streams at a time, and no publisher has all of the time."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg._links import status_reports as module
from meshmsg._links.status_reports import StatusReports
from meshmsg._model.message_fields import ENTRIES_MAX
from meshmsg._wire import control as c


class Intake:
    """A subscription with so many streams of each publisher."""

    sub = 7

    def __init__(self, **counts: int) -> None:
        self._counts = counts

    def sources_of(self, link: str) -> list[Any]:
        return [f"{link}/{n}" for n in range(self._counts[link])]

    def figures_of(self, sources: list[Any]) -> list[c.Figures]:
        return [c.Figures(name, 1, 0, 0, 0, 0, 0, {}) for name in sources]


class Sent:
    """What publishers were told."""

    def __init__(self) -> None:
        self.pages: list[tuple[str, c.Status]] = []

    def __call__(self, link: Any, parts: list[bytes]) -> bool:
        message = c.decode_message(parts[0])
        assert isinstance(message, c.Status)
        self.pages.append((link, message))
        return True


@pytest.fixture
def one_page_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        def __init__(self) -> None:
            self._pages = 0

        def is_over(self) -> bool:
            self._pages += 1
            return self._pages > 1

    monkeypatch.setattr(module, "Slice", Part)


@pytest.mark.usefixtures("one_page_a_turn")
def test_publisher_of_many_streams_is_told_page_by_page_and_others_in_between() -> None:
    sent = Sent()
    reports = StatusReports(sent)
    intake: Any = Intake(many=3 * ENTRIES_MAX, few=1)
    links: Any = ["many", "few"]
    reports.want(intake, links)
    reports.want(intake, links[:1], 5)
    for turn in range(4):
        assert reports.on_tick(100.0 + turn) <= 100.0 + turn or turn == 3
    assert [link for link, _ in sent.pages] == ["many", "few", "many", "many"]
    told = [f.stream for link, page in sent.pages if link == "many" for f in page.figures]
    assert told == [f"many/{n}" for n in range(3 * ENTRIES_MAX)]
    assert [page.answers for link, page in sent.pages if link == "many"] == [0, 0, 5]


def test_who_asks_again_and_again_waits_for_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.1, 11.2, 11.3])
    monkeypatch.setattr(module._platform, "monotonic", lambda: next(clock))
    monkeypatch.setattr(module, "Slice", lambda: Endless())
    sent = Sent()
    reports = StatusReports(sent)
    intake: Any = Intake(pub=1)
    pub: Any = "pub"
    reports.want(intake, [pub], 1)
    reports.on_tick(10.0)  # takes 0.1 s
    reports.want(intake, [pub], 2)
    assert reports.on_tick(10.2) == pytest.approx(11.1)
    assert [page.answers for _, page in sent.pages] == [1]
    reports.on_tick(11.2)
    assert [page.answers for _, page in sent.pages] == [1, 2]


class Endless:
    def is_over(self) -> bool:
        return False
