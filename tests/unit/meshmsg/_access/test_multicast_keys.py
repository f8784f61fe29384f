"""When the keys of a sealed stream change, who gets them, and what is logged."""

from __future__ import annotations

import logging

import pytest

from meshmsg import ConfigError, Multicast, Security
from meshmsg._access import multicast_keys as _mcast_seal
from meshmsg._access.multicast_keys import (
    CUT_OVERLAP_S,
    LEAD_S,
    ReceivingSeal,
    SendingSeal,
    sealed_bytes,
)
from meshmsg._wire.packet import NACK, SEAL_BYTES, PacketRequest
from tests.support.cores import beat

STREAM = 7
KEY = "Zq3-uY8hJx0_vB5nRkT2wLmEo7sD1fGc9aXpQi4HyUz"
PLAIN = Security(mesh_key=KEY, rotate_every=100, rotate_overlap=5)


class Clock:
    """The time of day, as the module sees it."""

    def __init__(self) -> None:
        self.now = 1_000_050.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_mcast_seal, "time", clock)
    return clock


def wire(by: SendingSeal, n: int = 1) -> bytes:
    packet = beat(n)
    return bytes(by.sealer.seal(packet, len(packet)))


def opens(by: ReceivingSeal, data: bytes, now: float = 0.0) -> bool:
    return bool(by.open(data, len(data), 0, now))


def request(by: ReceivingSeal) -> bytes:
    return by.seal(PacketRequest(NACK, STREAM, 3, 1, [(1, 2)]).encode())


def test_generation_follows_the_clock_and_never_goes_back(clock: Clock) -> None:
    sending = SendingSeal(PLAIN, STREAM)
    assert sending.generation == 10_000
    assert sending.on_tick(0.0) == 10.0  # the clock may be set meanwhile
    clock.now += 60
    sending.on_tick(9.0)
    assert sending.generation == 10_000
    sending.on_tick(10.0)
    assert sending.generation == 10_001
    clock.now -= 500
    sending.on_tick(30.0)
    assert sending.generation == 10_001


def test_receivers_understand_it_and_are_understood_through_the_change(clock: Clock) -> None:
    sending = SendingSeal(PLAIN, STREAM)
    told, by_hand = (ReceivingSeal(PLAIN, STREAM, "p/a", 1) for _ in range(2))
    told.enter(sending.info())
    by_hand.expect()
    for receiving in (told, by_hand):
        assert not receiving.is_ready
        assert opens(receiving, wire(sending))
        assert receiving.is_ready
        asked = request(receiving)
        assert sending.opener.open(asked, len(asked), now=0.0)
    old = request(told)
    sending.on_tick(0.0)
    clock.now += 100
    sending.on_tick(10.0)
    last = request(by_hand)
    for receiving in (told, by_hand):
        assert opens(receiving, wire(sending), 10.0)
        asked = request(receiving)
        assert sending.opener.open(asked, len(asked), now=10.0)
    assert sending.opener.open(old, len(old), now=14.9)
    assert not sending.opener.open(last, len(last), now=15.1)
    assert sending.counters == {"unknown_key": 1}


def test_keys_are_given_before_they_are_used(clock: Clock) -> None:
    given: list[tuple[int, bytes]] = []
    sending = SendingSeal(PLAIN, STREAM, lambda *key: given.append(key))
    info = sending.info()
    assert [generation for generation, _ in info.keys] == [10_000]
    sending.on_tick(0.0)
    clock.now += 100
    due = sending.on_tick(10.0)
    assert (due, sending.generation, len(given)) == (10.0 + LEAD_S, 10_000, 1)
    assert [generation for generation, _ in sending.info().keys] == [10_000, 10_001]
    sending.on_tick(due)
    assert (sending.generation, sending.info().keys) == (10_001, given)
    assert SendingSeal(PLAIN, STREAM, lambda *key: None).info().keys != info.keys


def test_whoever_may_not_read_any_more_is_not_given_the_next_key(clock: Clock) -> None:
    given: list[tuple[int, bytes]] = []
    sending = SendingSeal(PLAIN, STREAM, lambda *key: given.append(key))
    listed = Security(mesh_key=KEY)
    good, bad = (ReceivingSeal(listed, STREAM, "p/a", 1) for _ in range(2))
    for receiving in (good, bad):
        receiving.opener.keys._derive = None  # as with an allow-list
        receiving.enter(sending.info())
        assert opens(receiving, wire(sending))
    asked = request(bad)
    sending.renew(0.0)
    sending.renew(0.1)  # twice before it is used
    good.give(given)
    sending.on_tick(0.1 + LEAD_S)
    assert sending.generation == 10_002
    data = wire(sending)
    assert opens(good, data)
    assert not opens(bad, data)
    late = 0.2 + LEAD_S + CUT_OVERLAP_S
    assert not sending.opener.open(asked, len(asked), now=late)
    SendingSeal(PLAIN, STREAM).renew(0.0)  # with a mesh key there is nothing to give


def test_what_is_wrong_is_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    sending, receiving = SendingSeal(PLAIN, STREAM), ReceivingSeal(PLAIN, STREAM, "p/a", 1)
    other = SendingSeal(Security(mesh_key=KEY[::-1], rotate_every=100), STREAM)
    receiving.expect()
    with caplog.at_level(logging.WARNING, "meshmsg"):
        for n in range(5):
            assert not opens(receiving, wire(other, n))
            assert not opens(receiving, beat(n))
        assert opens(receiving, wire(sending))
        receiving.enter(None)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 3
    assert "key that we do not have" in texts[0]
    assert "are not sealed" in texts[1]
    assert "does not seal it" in texts[2]
    assert receiving.counters == {"unknown_key": 5, "unsealed": 5}


def test_packets_have_room_for_their_seals() -> None:
    line = Multicast("239.255.7.7:30001", parity="4+1")
    assert sealed_bytes(line, None) == line.packet_bytes
    assert sealed_bytes(line, PLAIN) == line.packet_bytes - SEAL_BYTES


@pytest.mark.parametrize(
    ("field", "chosen"),
    [
        ("rotate_every", {"rotate_every": 0}),
        ("rotate_every", {"rotate_every": "2days"}),
        ("rotate_every", {"rotate_every": 100_000}),
        ("rotate_overlap", {"rotate_every": "10s", "rotate_overlap": "11s"}),
        ("rotate_overlap", {"rotate_overlap": -1}),
    ],
)
def test_times_that_cannot_be_are_refused(field: str, chosen: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"security.{field}"):
        Security(mesh_key=KEY, **chosen)  # type: ignore[arg-type]
