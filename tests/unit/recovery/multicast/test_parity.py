"""Parity packets: what is lost is computed, and nonsense computes nothing."""

from __future__ import annotations

import random
import sys
from unittest import mock

import pytest

from meshmsg import ConfigError
from meshmsg._wire.packet import PARITY_MORE_BYTES, PacketParity, decode_packet
from meshmsg.recovery.multicast.parity import (
    BLOCKS_MAX,
    ParityDecoder,
    check_parity_library,
    parity_packets,
)

GROUP = [random.Random(n).randbytes(60 + 7 * n) for n in range(6)]


def parity_of(first: int, group: list[bytes], extra: int) -> list[PacketParity]:
    made = [decode_packet(packet) for packet in parity_packets(7, 3, first, group, extra)]
    assert all(isinstance(one, PacketParity) for one in made)
    return made  # type: ignore[return-value]


def have_all_but(first: int, *lost: int) -> dict[int, bytes]:
    return {first + n: packet for n, packet in enumerate(GROUP) if n not in lost}


@pytest.mark.parametrize("lost", range(6))
def test_any_one_lost_packet_is_computed(lost: int) -> None:
    (parity,) = parity_of(100, GROUP, 1)
    found = ParityDecoder().on_parity(parity, have_all_but(100, lost))
    assert found == [(100 + lost, GROUP[lost])]


def test_as_many_are_computed_as_there_are_parity_packets() -> None:
    decoder = ParityDecoder()
    one, two, three = parity_of(100, GROUP, 3)
    have = have_all_but(100, 0, 3, 5)
    assert decoder.on_parity(two, have) == []
    assert decoder.on_parity(three, have) == []
    assert decoder.on_parity(one, have) == [(100, GROUP[0]), (103, GROUP[3]), (105, GROUP[5])]


def test_parity_packet_that_comes_twice_counts_once() -> None:
    decoder = ParityDecoder()
    one, _ = parity_of(100, GROUP, 2)
    have = have_all_but(100, 1, 2)
    assert decoder.on_parity(one, have) == decoder.on_parity(one, have) == []


def test_nothing_is_computed_where_nothing_is_missing() -> None:
    (parity,) = parity_of(100, GROUP, 1)
    assert ParityDecoder().on_parity(parity, have_all_but(100)) == []


def test_group_of_one_packet_is_a_copy() -> None:
    (parity,) = parity_of(5, GROUP[:1], 1)
    assert ParityDecoder().on_parity(parity, {}) == [(5, GROUP[0])]


def test_parity_packet_is_longer_than_what_it_protects_by_a_known_amount() -> None:
    (packet,) = parity_packets(7, 3, 0, GROUP, 1)
    assert len(packet) == max(map(len, GROUP)) + PARITY_MORE_BYTES


def test_parity_packets_that_contradict_each_other_compute_nothing() -> None:
    decoder = ParityDecoder()
    one, _ = parity_of(100, GROUP, 2)
    other = parity_of(100, GROUP[:4], 2)[1]
    assert decoder.on_parity(one, have_all_but(100, 0, 1)) == []
    assert decoder.on_parity(other, have_all_but(100, 0, 1)) == []


def test_packets_that_were_not_protected_compute_nothing() -> None:
    (parity,) = parity_of(100, GROUP, 1)
    have = have_all_but(100, 0) | {101: bytes(5000)}
    assert ParityDecoder().on_parity(parity, have) == []


def test_random_blocks_never_raise() -> None:
    rng = random.Random(1)
    for _ in range(300):
        count, extra = rng.randint(1, 8), rng.randint(1, 3)
        parity = PacketParity(7, 3, 100, rng.randrange(extra), count, extra, rng.randbytes(80))
        ParityDecoder().on_parity(parity, have_all_but(100, rng.randrange(6)))


def test_memory_of_groups_is_bounded() -> None:
    decoder = ParityDecoder()
    for first in range(5000):
        parity = PacketParity(7, 3, first, 0, 8, 2, bytes(10))
        decoder.on_parity(parity, {})
    assert sum(map(len, decoder._groups.values())) <= BLOCKS_MAX


def test_library_that_is_not_there_is_asked_for() -> None:
    check_parity_library()
    with mock.patch.dict(sys.modules, {"zfec": None}), pytest.raises(ConfigError, match="zfec"):
        check_parity_library()
