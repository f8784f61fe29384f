"""Iterating a subscription and reading an event: compiled and in Python, the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from meshmsg._model.batch import Event
from meshmsg._model.codecs import Undecodable
from meshmsg._model.errors import PayloadError
from meshmsg._native import COMPILED
from meshmsg._receive.subscription import Subscription

Ways = Callable[[Any, Callable[[], Any]], Iterator[Any]]


def in_python(intake: Any, following: Callable[[], Any]) -> Iterator[Any]:
    fake: Any = SimpleNamespace(_intake=intake, _next_batch=lambda until, as_events: following())
    return Subscription._iterate(fake)


def compiled(intake: Any, following: Callable[[], Any]) -> Iterator[Any]:
    from meshmsg import _speed

    return _speed.Iteration(intake, following)


WAYS = [in_python, *([compiled] if COMPILED else [])]


class Source:
    """Gives batches as they are listed: a list, the end, or what is raised."""

    def __init__(self, *batches: Any) -> None:
        self.iterator: Iterator[Any] = iter(())
        self._batches = list(batches)

    def following(self) -> Any:
        found = self._batches.pop(0) if self._batches else None
        if isinstance(found, Exception):
            raise found
        if found is not None:
            self.iterator = iter(found)
        return found


@pytest.mark.parametrize("way", WAYS)
def test_all_batches_one_after_the_other_then_the_end(way: Ways) -> None:
    source = Source([1, 2], [], [3])
    assert list(way(source, source.following)) == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_a_second_loop_goes_on_where_the_first_one_stopped(way: Ways) -> None:
    source = Source([1, 2, 3], [4])
    assert next(way(source, source.following)) == 1
    assert list(way(source, source.following)) == [2, 3, 4]


@pytest.mark.parametrize("way", WAYS)
def test_what_waiting_raises_comes_through_and_a_new_loop_goes_on(way: Ways) -> None:
    source = Source([1], ValueError("lost"), [2])
    events = way(source, source.following)
    assert next(events) == 1
    with pytest.raises(ValueError, match="lost"):
        next(events)
    assert list(way(source, source.following)) == [2]


def test_data_that_does_not_decode_raises_and_other_data_is_given_as_it_is() -> None:
    batch: Any = SimpleNamespace(stream="s", frame=SimpleNamespace(epoch=1, first=5))
    value = object()
    assert Event(value, batch, 0).data is value
    with pytest.raises(PayloadError, match="s@1:7: no good"):
        Event(Undecodable("no good"), batch, 2).data  # noqa: B018
    with pytest.raises(AttributeError):
        Event(value, batch, 0).data = 1  # type: ignore[misc]
