"""Where what a group gives up goes, with which history, and what happens if it cannot be kept."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from meshmsg import ClosedError, LogError, Stream
from meshmsg._groups.dead_letters import RETRY_S, DeadLetters
from meshmsg._groups.seat import Seat
from meshmsg._model.codecs import Codec
from meshmsg._publish.published_stream import Outlet
from meshmsg._wire.frame import (
    HEADERS_BYTES_MAX,
    Frame,
    encode_frame,
    encode_headers,
)
from meshmsg.recovery.groups.policy import DeadLetter, Trouble
from tests.support.grouping import Disk, seat_of
from tests.support.publishing import outlet_of


class Letter(NamedTuple):
    """An event as it was published."""

    outlet: Outlet
    topic: str
    payload: bytes
    raw: bool
    key: str | None
    headers: bytes


class World:
    """The dead letters of the peer `pub`, and what was published of them."""

    def __init__(self) -> None:
        self.streams: dict[str, Outlet] = {}
        self.counters: Counter[str] = Counter()
        self.sent: list[Letter] = []
        self.problem: Exception | None = None
        self.dead = DeadLetters("pub", self.streams, self.counters, self._declare, self._publish)

    def _declare(self, stream: Stream) -> Outlet:
        outlet = outlet_of(stream)
        assert outlet.stream not in self.streams
        self.streams[outlet.stream] = outlet
        return outlet

    def _publish(self, *letter: Any) -> None:
        if self.problem is not None:
            raise self.problem
        self.sent.append(Letter(*letter))


@pytest.fixture
def world() -> World:
    return World()


def give_up(seat: Seat, *numbers: int, headers: dict[str, Any] | None = None) -> None:
    payloads = [b"%d" % number for number in range(10)]
    packed = {} if headers is None else dict.fromkeys(range(10), encode_headers(headers))
    data = encode_frame(1, seat.outlet.epoch, 0, "a.x", payloads, 1, keys={3: "K"}, headers=packed)
    for number in numbers:
        trouble = Trouble(5, members=["w1", "w2"], error="ValueError: bad", reason="nacked")
        seat.group.dead_letters.append(DeadLetter(Frame(data), number, trouble))


def test_a_letter_has_the_event_and_its_history(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    seat = seat_of(outlet_of(Stream("a.**")))
    give_up(seat, 3, headers={"trace": 7, "dead.stream": "invented"})
    changes = seat.group.changes
    world.dead.bury_all(seat, 0.0)
    [letter] = world.sent
    assert letter.outlet.stream == "pub/dead.g"
    assert (letter.topic, letter.payload, letter.raw, letter.key) == ("dead.g", b"3", True, "K")
    assert msgspec.msgpack.decode(letter.headers) == {
        "trace": 7,
        "dead.stream": "pub/a.**",
        "dead.epoch": seat.outlet.epoch,
        "dead.seq": 3,
        "dead.topic": "a.x",
        "dead.attempts": 5,
        "dead.members": ["w1", "w2"],
        "dead.reason": "nacked",
        "dead.error": "ValueError: bad",
    }
    assert seat.group.changes == changes + 1
    assert seat.group.dead_letters == []
    assert "gave up" in caplog.text


def test_headers_that_leave_no_room_for_the_history_stay_where_they_were(world: World) -> None:
    seat = seat_of(outlet_of(Stream("a")))
    give_up(seat, 0, headers={"large": "x" * (HEADERS_BYTES_MAX - 20)})
    world.dead.bury_all(seat, 0.0)
    headers = msgspec.msgpack.decode(world.sent[0].headers)
    assert "large" not in headers
    assert headers["dead.seq"] == 0


class Other(Codec):
    name = "a codec of the user's/own"

    def encode(self, data: Any) -> bytes:
        return b""

    def decode(self, data: Any) -> Any:
        return None


def test_streams_of_one_group_share_dead_letters_unless_payloads_or_safety_differ(
    world: World, tmp_path: Path
) -> None:
    find = world.dead.outlet_for
    first = find("g", outlet_of(Stream("a")))
    assert first.config.overflow == "drop_oldest"
    assert find("g", outlet_of(Stream("b"))) is first
    assert find("h", outlet_of(Stream("a"))) is not first
    with Disk(tmp_path) as disk:
        batch = find("g", disk.open(Stream("e", durability="log")))
        assert batch.stream == "pub/dead.g+log"
        assert (batch.config.durability, batch.config.fsync) == ("log", "batch")
        loose = find("g", disk.open(Stream("f", durability="log", fsync="never")))
        assert (loose.stream, loose.config.fsync) == ("pub/dead.g+unsynced", "never")
        assert find("g", disk.open(Stream("h", durability="log", fsync="always"))) is batch
    assert find("h", outlet_of(Stream("c", codec="json"))).stream == "pub/dead.h+json"
    own = find("h", outlet_of(Stream("d", codec=Other()))).stream
    assert len(own) == len("pub/dead.h+") + 8  # its name does not go into one of a stream


def test_a_stream_that_is_there_already_is_used(world: World) -> None:
    """The user declared it, or it is of an earlier group."""
    known = world.streams["pub/dead.g"] = outlet_of(Stream("dead.g"))
    assert world.dead.outlet_for("g", outlet_of(Stream("a"))) is known


def test_a_group_knows_its_own_dead_letters(world: World) -> None:
    mine = world.dead.outlet_for("g", outlet_of(Stream("a")))
    assert world.dead.is_of(mine, "g")
    assert not world.dead.is_of(mine, "h")
    assert not world.dead.is_of(outlet_of(Stream("a")), "g")


@pytest.mark.parametrize("problem", [LogError("/data", "No space left"), ClosedError("closed")])
def test_what_cannot_be_kept_now_is_tried_again_in_a_while(
    world: World, tmp_path: Path, problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with Disk(tmp_path) as disk:
        seat = seat_of(disk.open(Stream("a", durability="log")))
        give_up(seat, 1, 2)
        world.problem = problem
        world.dead.bury_all(seat, 10.0)
        assert ("was not kept" in caplog.text) == isinstance(problem, LogError)
        world.problem = None
        world.dead.bury_all(seat, 10.0 + RETRY_S / 2)
        assert world.sent == []
        world.dead.bury_all(seat, 10.0 + RETRY_S)
        assert [letter.payload for letter in world.sent] == [b"1", b"2"]
        assert world.counters["dead_unpublished"] == 1


def test_of_a_volatile_stream_what_cannot_be_kept_is_counted_and_gone(world: World) -> None:
    seat = seat_of(outlet_of(Stream("a")))
    give_up(seat, 1, 2, 3)
    world.problem = ClosedError("the peer is closed")
    world.dead.bury_all(seat, 0.0)
    assert world.counters["dead_unpublished"] == 3
    world.problem = None
    world.dead.bury_all(seat, 100.0)
    assert world.sent == []
