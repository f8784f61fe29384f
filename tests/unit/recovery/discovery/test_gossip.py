"""Gossip: bounded, whatever comes."""

from __future__ import annotations

import random

from meshmsg.recovery.discovery.gossip import NEWS_MAX, Rumours


def test_a_flood_of_peers_is_told_of_in_bounded_parts_and_ends() -> None:
    rumours = Rumours(256, random.Random(1))
    for instance in range(3 * NEWS_MAX):
        rumours.joined(instance)
    rounds = 0
    while (said := rumours.round([], [1], now=0.0)) and rounds < 3 * NEWS_MAX:
        rounds += 1
        assert all(len(told) <= 256 for _, told in said)
    assert rounds == NEWS_MAX // 256
