"""Places that are shared: so many each, and when all are taken, who has most gives one."""

from __future__ import annotations

from meshmsg.recovery.stream.quotas import Owner, Quota

ONE, TWO = Owner("10.0.0.1", b"a"), Owner("10.0.0.1", b"b")
OTHER = Owner("10.0.0.2", b"c")


def filled(quota: Quota, owner: Owner, count: int) -> None:
    for _ in range(count):
        assert quota.giver(owner) == owner
        quota.take(owner)


def test_an_owner_has_no_more_than_its_own() -> None:
    quota = Quota(each=3, total=100)
    filled(quota, ONE, 3)
    assert quota.giver(ONE) is None
    assert quota.giver(TWO) == TWO
    quota.free(ONE)
    assert quota.giver(ONE) == ONE


def test_the_host_that_has_most_gives_a_place_to_another() -> None:
    quota = Quota(each=100, total=10)
    filled(quota, ONE, 6)
    filled(quota, TWO, 4)
    assert quota.giver(OTHER) == ONE
    quota.free(ONE)
    quota.take(OTHER)
    assert quota.giver(OTHER) == ONE


def test_many_owners_of_one_host_do_not_lock_another_host_out() -> None:
    quota = Quota(each=100, total=10)
    for number in range(10):
        filled(quota, Owner("10.0.0.1", b"%d" % number), 1)
    giver = quota.giver(OTHER)
    assert giver is not None
    assert giver.host == "10.0.0.1"


def test_of_one_host_the_owner_that_has_most_gives_a_place() -> None:
    quota = Quota(each=100, total=10)
    filled(quota, ONE, 10)
    assert quota.giver(TWO) == ONE
    assert quota.giver(ONE) is None


def test_nobody_gives_to_one_that_has_as_many() -> None:
    quota = Quota(each=100, total=4)
    filled(quota, ONE, 2)
    filled(quota, OTHER, 2)
    assert quota.giver(ONE) is None
    assert quota.giver(OTHER) is None
    quota.free(ONE)
    assert quota.giver(OTHER) == OTHER


def test_what_is_freed_is_forgotten() -> None:
    quota = Quota(each=100, total=10)
    filled(quota, ONE, 3)
    quota.free(ONE, 7)
    assert quota.used == 0
    assert not quota.owners
    assert quota.most(5) == []
