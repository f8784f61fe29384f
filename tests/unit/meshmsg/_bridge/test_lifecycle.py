"""The life of a bridge: a thread that is begun once and ends when it is told."""

from __future__ import annotations

import threading

import pytest

from meshmsg._bridge.lifecycle import Closing, Edge
from meshmsg._model.errors import ClosedError


class Bridge(Edge):
    """One whose thread works until it is told to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __enter__(self) -> Bridge:
        self._check_unopened()
        self._begin(self._run, "bridge")
        return self

    def _run(self) -> None:
        self.names.append(threading.current_thread().name)
        self._stopping.wait(30)


def test_bridge_works_inside_its_block_and_ends_with_it() -> None:
    bridge = Bridge()
    assert not bridge.alive
    with bridge:
        assert bridge.alive
    assert not bridge.alive
    assert bridge.names == ["meshmsg-bridge"]
    bridge.close()


def test_bridge_is_opened_once() -> None:
    bridge = Bridge()
    with bridge, pytest.raises(ClosedError, match="a Bridge is opened once"), bridge:
        pass
    with pytest.raises(ClosedError), bridge:
        pass


def test_bridge_that_was_never_opened_is_closed_like_any_other() -> None:
    Bridge().close()


def test_bridge_ends_whatever_happens_in_its_block() -> None:
    bridge = Bridge()
    with pytest.raises(ValueError, match="the user's"), bridge:
        raise ValueError("the user's")
    assert not bridge.alive


def test_what_closes_says_how() -> None:
    with pytest.raises(NotImplementedError):
        Closing().close()
