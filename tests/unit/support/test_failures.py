"""A test that fails shows what its peers were like."""

from __future__ import annotations

import asyncio

import pytest

from meshmsg import AsyncPeer, Peer
from tests.support import failures
from tests.support.remote import RemotePeer


def test_peers_that_an_error_closes_are_asked_before() -> None:
    def fail() -> None:
        with (
            Peer("pub") as pub,
            RemotePeer("far", connect=pub.address) as far,
            Peer("sub", connect=pub.address) as sub,
        ):
            far.run("peer.wait_for_peers(timeout=60)")
            sub.wait_for_peers(timeout=60)
            raise AssertionError

    with pytest.raises(AssertionError) as failed:
        fail()
    said = failures.figures(failed.value)
    assert said.count("'state': 'up'") == 2
    assert "RemotePeer('far')" in said


def test_peers_of_a_loop_are_asked() -> None:
    async def fail() -> None:
        async with AsyncPeer("pub"):
            raise AssertionError

    with pytest.raises(AssertionError) as failed:
        asyncio.run(fail())
    assert "'peer': 'pub'" in failures.figures(failed.value)


def test_peers_that_are_open_yet_are_asked_and_others_are_not() -> None:
    with Peer("pub"):
        with pytest.raises(AssertionError), Peer("other"):
            raise AssertionError
        said = failures.figures(AssertionError())
    assert "'peer': 'pub'" in said
    assert "'peer': 'other'" not in said


def test_one_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "ANSWER_S", 0.01)
    with RemotePeer("far") as far:
        far.stop()
        assert "no answer" in failures.figures(AssertionError())
        far.go_on()
