"""Which member has a key: everybody agrees, and only the keys of who came or went move."""

from __future__ import annotations

from collections import Counter

from meshmsg.recovery.groups.rendezvous import Owners, owner_of

KEYS = [f"key-{n}" for n in range(2000)]


def test_order_in_which_members_are_seen_does_not_matter() -> None:
    for key in KEYS[:200]:
        assert owner_of(key, [1, 2, 3, 4]) == owner_of(key, [4, 2, 1, 3])


def test_keys_are_spread_evenly() -> None:
    shares = Counter(owner_of(key, [11, 22, 33, 44]) for key in KEYS)
    assert len(shares) == 4
    assert min(shares.values()) > len(KEYS) / 4 * 0.8


def test_only_keys_of_a_lost_member_move() -> None:
    for key in KEYS:
        before = owner_of(key, [1, 2, 3])
        after = owner_of(key, [1, 3])
        assert after == before or before == 2


def test_only_keys_that_a_new_member_gets_move() -> None:
    for key in KEYS:
        before = owner_of(key, [1, 2, 3])
        after = owner_of(key, [1, 2, 3, 4])
        assert after in (before, 4)


def test_owner_is_the_same_on_every_machine_and_release() -> None:
    owners = [owner_of(key, [1, 2, 3]) for key in ("a", "b", "c", "d", "e", "")]
    assert owners == [3, 2, 2, 1, 3, 3]


def test_nobody_has_a_key_where_nobody_is() -> None:
    assert owner_of("a", []) is None
    assert Owners().owner("a") is None


def test_remembered_owners_follow_the_members() -> None:
    owners = Owners()
    for members in ([1], [1, 2], [2]):
        owners.set_members(members)
        assert all(owners.owner(key) == owner_of(key, members) for key in KEYS[:100])


def test_key_that_utf8_cannot_carry_has_an_owner() -> None:
    assert owner_of("\udc80", [1, 2]) in (1, 2)
