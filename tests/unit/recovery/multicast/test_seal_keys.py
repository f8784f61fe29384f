"""The keys of a sealed stream: which generation is good when, and who follows whom."""

from __future__ import annotations

from meshmsg.recovery.multicast.seal_keys import GENERATION_BITS, GIVEN_MAX, SealKeys
from meshmsg.recovery.stream.loss_detector import NEVER

SPAN = 1 << GENERATION_BITS


def derive(generation: int) -> list[bytes]:
    return [b"key %d" % generation]


def keys(**options: object) -> SealKeys:
    return SealKeys(derive, overlap_s=10.0, **options)  # type: ignore[arg-type]


def generations(known: SealKeys, lows: range) -> list[int]:
    return [full for low in lows for full, _ in known.candidates(low % SPAN)]


def test_before_any_generation_nothing_is_good() -> None:
    assert keys().candidates(0) == []


def test_the_generation_before_is_good_for_the_overlap() -> None:
    known = keys(follows=False)
    known.begin(5, now=0)
    assert (known.good(), known.retire_at) == ((5, -1), NEVER)
    known.begin(6, now=100)
    assert known.good() == (6, 5)
    known.retire(now=109.9)
    assert generations(known, range(4, 8)) == [5, 6]
    known.retire(now=110)
    assert generations(known, range(4, 8)) == [6]
    assert known.retire_at == NEVER


def test_the_same_generation_again_leaves_the_one_before_as_it_is() -> None:
    known = keys()
    known.begin(5, now=0)
    known.begin(6, now=100)
    known.begin(6, now=105)
    assert (known.good(), known.retire_at) == ((6, 5), 110.0)


def test_a_receiver_follows_its_sender_forward_only() -> None:
    known = keys()
    known.begin(5, now=0)
    assert generations(known, range(9)) == [5, 6, 7, 8]
    assert known.heard(7, now=1)
    assert known.good() == (7, 5)
    assert not known.heard(6, now=2)
    assert not known.heard(7, now=2)
    assert known.generation == 7


def test_low_bits_name_the_nearest_generation_and_never_one_below_zero() -> None:
    known = keys()
    known.begin(3, now=0)
    assert known.candidates(SPAN - 1) == []
    known.begin(2 * SPAN - 1, now=0)
    assert known.candidates(0) == [(2 * SPAN, b"key %d" % (2 * SPAN))]
    assert known.candidates(SPAN - 1) == [(2 * SPAN - 1, b"key %d" % (2 * SPAN - 1))]


def test_a_guess_by_the_clock_allows_its_neighbours_until_one_is_heard() -> None:
    known = keys()
    known.expect(10)
    assert generations(known, range(8, 13)) == [9, 10, 11]
    assert known.heard(9, now=0)
    assert known.good() == (9, -1)
    assert known.retire_at == NEVER


def test_a_given_key_is_used_instead_of_a_derived_one() -> None:
    known = keys()
    known.begin(5, now=0)
    known.give(5, b"given")
    assert known.candidates(5) == [(5, b"given")]
    only_given = SealKeys(None, overlap_s=10)
    only_given.begin(5, now=0)
    assert only_given.candidates(5) == []
    only_given.give(6, b"next")
    assert only_given.candidates(6) == [(6, b"next")]


def test_given_keys_are_bounded_and_go_when_their_generation_retires() -> None:
    known = SealKeys(None, overlap_s=10)
    for generation in range(GIVEN_MAX + 3):
        known.give(generation, b"k")
    assert sorted(known._given) == list(range(3, GIVEN_MAX + 3))
    known.begin(4, now=0)
    known.begin(5, now=0)
    known.retire(now=10)
    assert min(known._given) == 5


def test_while_the_mesh_key_changes_each_of_its_keys_is_tried() -> None:
    known = SealKeys(lambda generation: [b"new", b"old"], overlap_s=10)
    known.begin(5, now=0)
    assert known.candidates(5) == [(5, b"new"), (5, b"old")]
