"""Of each key one event is out; the next one waits until that is settled."""

from __future__ import annotations

from meshmsg.recovery.groups.key_order import KeyOrder
from meshmsg.recovery.groups.member import GroupMember
from meshmsg.recovery.groups.rendezvous import owner_of
from meshmsg.recovery.stream.ranges import RangeSet


def order_with(*numbers: int) -> tuple[KeyOrder, dict[int, GroupMember]]:
    members = {n: GroupMember(n, f"m{n}", 10, 30.0, now=0.0) for n in numbers}
    keys = KeyOrder(members)
    keys.on_members_changed()
    return keys, members


def test_the_second_event_of_a_key_stands_in_line_until_the_first_is_settled() -> None:
    keys, members = order_with(1)
    assert keys.add("k", 0) is members[1]
    assert keys.add("k", 1) is None
    assert keys.parked == 1
    assert keys.take(members[1]) == 0
    assert not members[1].waiting
    keys.settle(0)
    assert (keys.parked, keys.next_at(members[1])) == (0, 1)


def test_other_keys_go_on_meanwhile() -> None:
    keys, members = order_with(1)
    keys.add("k", 0)
    keys.add("l", 1)
    assert [keys.take(members[1]), keys.take(members[1])] == [0, 1]
    keys.settle(1)
    assert 1 not in keys
    assert 0 in keys


def test_without_members_heads_wait_and_go_to_their_owner_when_it_comes() -> None:
    keys, members = order_with()
    assert keys.add("k", 0) is None
    assert keys.waiting == 1
    members[5] = GroupMember(5, "m5", 10, 30.0, now=0.0)
    keys.on_members_changed()
    assert keys.take(members[5]) == 0


def test_keys_move_when_members_change_but_not_what_is_out() -> None:
    keys, members = order_with(1, 2)
    names = [f"k{n}" for n in range(50)]
    for seq, key in enumerate(names):
        owner = keys.add(key, seq)
        assert owner is members[owner_of(key, [1, 2]) or 0]
    out = keys.take(members[1])
    gone = members.pop(1)
    keys.on_members_changed(gone.waiting)
    assert len(members[2].waiting) == 49
    keys.settle(out)
    assert out not in keys


def test_a_head_goes_out_again_ahead_of_others() -> None:
    keys, members = order_with(1)
    keys.add("k", 0)
    keys.take(members[1])
    keys.add("l", 1)
    keys.again(0, ahead=True)
    assert [keys.take(members[1]), keys.take(members[1])] == [0, 1]


def test_a_head_that_waits_already_is_not_listed_twice() -> None:
    keys, members = order_with(1)
    keys.add("k", 0)
    keys.again(0)
    assert list(members[1].waiting) == ["k"]


def test_withdrawn_heads_are_out_and_no_longer_listed() -> None:
    keys, members = order_with(1)
    keys.add("k", 0)
    keys.add("l", 1)
    assert keys.withdraw(RangeSet([(1, 5)])) == {1}
    assert list(members[1].waiting) == ["k"]
    keys.again(1)
    assert list(members[1].waiting) == ["k", "l"]


def test_what_a_member_had_before_its_key_was_known_is_out() -> None:
    keys, members = order_with(1)
    assert keys.hold("k", 3)
    assert not keys.hold("k", 4)
    assert (keys.parked, list(members[1].waiting)) == (1, [])
    keys.settle(3)
    assert keys.next_at(members[1]) == 4


def test_settling_a_head_that_waits_takes_it_from_its_list() -> None:
    keys, members = order_with(1)
    keys.add("k", 0)
    keys.settle(0)
    assert not members[1].waiting
    assert not keys


def test_a_range_far_longer_than_what_has_keys_settles_in_order() -> None:
    keys, members = order_with(1)
    for seq in (5, 7, 9):
        keys.add("k", seq)
    keys.settle_all(0, 1 << 60)
    assert (keys.parked, bool(keys), list(members[1].waiting)) == (0, False, [])


def test_settling_from_the_middle_of_the_line_leaves_the_head() -> None:
    keys, members = order_with(1)
    for seq in (5, 7, 9):
        keys.add("k", seq)
    keys.settle(7)
    keys.settle(7)  # again: nothing
    assert keys.parked == 1
    keys.take(members[1])
    keys.settle(5)
    assert keys.next_at(members[1]) == 9
