"""Parts of a peer in a forked child: none of them may be used there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from meshmsg._model.errors import ForkedError
from meshmsg._peer.forks import is_forked, own
from tests.support.forking import in_child


class Part:
    """Something that users' objects lead to."""

    def __init__(self) -> None:
        self.value = 1

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Node:
    """A peer with these parts."""

    def __init__(self, *parts: object) -> None:
        self.parts = list(parts)

    def forked_parts(self) -> list[object]:
        return [*self.parts, self]


def enter(part: Any) -> None:
    with part:
        pass


@pytest.mark.parametrize(
    "use",
    [
        lambda part: part.value,
        lambda part: part.missing,
        lambda part: setattr(part, "value", 2),
        enter,
    ],
)
def test_whatever_is_asked_of_a_part_says_whose_it_is(use: Callable[[Any], Any]) -> None:
    part = Part()
    node = Node(part)
    own(node)
    error = in_child(lambda: use(part))
    assert isinstance(error, ForkedError)
    assert str(os.getpid()) in str(error)
    assert part.value == 1  # the parent's own is as it was
    assert not is_forked(part)
    assert len(node.parts) == 1


def test_part_is_still_known_by_its_kind_and_by_being_another_s() -> None:
    part = Part()
    node = Node(part)
    own(node)
    told = in_child(
        lambda: (isinstance(part, Part), is_forked(part), is_forked(node), is_forked(1))
    )
    assert told == (True, True, True, False)


def test_peer_that_is_opened_in_the_child_is_the_child_s_own() -> None:
    outer = Node(Part())
    own(outer)

    def child() -> tuple[bool, bool, int]:
        part = Part()
        inner = Node(part)
        own(inner)
        error = in_child(lambda: part.value)  # a grandchild
        assert isinstance(error, ForkedError)
        return is_forked(part), str(os.getpid()) in str(error), part.value

    assert in_child(child) == (False, True, 1)


def test_peer_that_is_gone_is_nobody_s() -> None:
    part = Part()
    node = Node(part)
    own(node)
    node.parts.clear()
    del node
    assert in_child(lambda: part.value) == 1
