"""What users' tests lose on purpose: the same messages each time, and nothing afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from meshmsg._model.config import Stream
from meshmsg._model.errors import ConfigError
from meshmsg._peer.peer import Peer
from meshmsg.testing import (
    LossyLink,
    LossyPath,
    lose_frames,
    lose_messages,
    lose_packets,
    own_mesh,
)
from tests.support.receiving import beat, data, packet_beat, packets

FRAME, BEAT = data(0, 3), beat(3)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("kind", [LossyLink, LossyPath])
def test_ratio_is_a_part(kind: type[LossyLink | LossyPath], ratio: float) -> None:
    with pytest.raises(ConfigError, match="ratio"):
        kind(ratio, 0)


# Messages --------------------------------------------------------------------------------------


def lost(seed: int, ratio: float = 0.3) -> list[bool]:
    link = LossyLink(ratio, seed)
    return [link(FRAME) for _ in range(200)]


def test_same_messages_are_lost_each_time() -> None:
    assert lost(7) == lost(7) != lost(8)
    assert 30 <= sum(lost(7)) <= 90


@pytest.mark.parametrize(("ratio", "count"), [(0, 0), (1, 200)])
def test_none_or_all_are_lost(ratio: float, count: int) -> None:
    assert sum(lost(7, ratio)) == count


def test_heartbeats_are_lost_only_where_that_is_asked_for() -> None:
    spared, whole = LossyLink(1, 0), LossyLink(1, 0, heartbeats=True)
    assert [spared(one) for one in (FRAME, BEAT, b"", b"other")] == [True, False, False, False]
    assert (spared.dropped, spared.passed) == (1, 3)
    assert [whole(one) for one in (FRAME, BEAT, b"", b"other")] == [True] * 4


# Packets ---------------------------------------------------------------------------------------


def test_packets_of_a_burst_are_lost_like_packets_one_by_one() -> None:
    one, burst = LossyPath(0.2, 7), LossyPath(0.2, 7)
    alone = [at * 10 for at in range(1000) if one(b"x" * 10)]
    together = burst.lost_of(b"x" * 9995, 10)
    assert alone == together
    assert (one.dropped, one.passed) == (burst.dropped, burst.passed)
    assert 100 <= one.dropped <= 300


def test_burst_that_is_spared_is_counted_as_passed() -> None:
    path, same = LossyPath(0.2, 7), LossyPath(0.2, 7)
    first = same.lost_of(b"x" * 10_000, 10)[0] // 10
    assert first > 0
    assert not path.spares(first + 1)
    assert path.passed == 0
    assert path.spares(first)
    assert path.passed == first
    assert path(b"the next")


@pytest.mark.parametrize(("ratio", "gone"), [(0, 0), (1, 50)])
def test_no_packet_or_every_one(ratio: float, gone: int) -> None:
    path = LossyPath(ratio, 7)
    assert sum(path(b"packet") for _ in range(50)) == gone
    assert path.spares(sys.maxsize // 2) is (ratio == 0)


def test_packets_that_carried_events_are_counted_apart() -> None:
    path = LossyPath(1, 0)
    for packet in (*packets((0, 1)), packet_beat(0, 0), b""):
        path(packet)
    assert (path.dropped, path.data_dropped) == (3, 1)


# At a peer -------------------------------------------------------------------------------------


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer("me", streams=[Stream("a.**")]) as made:
        yield made


def test_frames_are_lost_inside_the_block_and_not_after_it(peer: Peer) -> None:
    with lose_frames(peer, ratio=1.0) as link:
        for number in range(3):
            peer.publish("a.b", number)
            peer.flush(timeout=30)
        seen = link.dropped
        assert seen >= 1
    peer.publish("a.b", 3)
    peer.flush(timeout=30)
    assert link.dropped == seen


def test_block_ends_well_whatever_ended_first(peer: Peer) -> None:
    with lose_messages(peer, lambda message: True), lose_packets(peer):
        peer.close()
    with Peer("other") as other:
        with pytest.raises(ValueError, match="the user's"), lose_packets(other, line="239.1.1.1:1"):
            raise ValueError("the user's")
        with pytest.raises(ConfigError), lose_packets(other, line="nonsense"):
            pass


def test_own_mesh_is_another_each_time_and_ends_with_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MESHMSG_MESH", "before")
    with own_mesh() as first:
        assert Peer("me").config.mesh == first
        with own_mesh() as second:
            assert Peer("me").config.mesh == second != first
        assert os.environ["MESHMSG_MESH"] == first
    assert os.environ["MESHMSG_MESH"] == "before"
    monkeypatch.delenv("MESHMSG_MESH")
    with own_mesh():
        pass
    assert "MESHMSG_MESH" not in os.environ
