"""Everything that the I/O thread hands to a member is understood by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from meshmsg._groups.consumer_messages import Asked, Attached, Notice, Parted
from meshmsg._receive.incoming_stream import Sweep
from meshmsg._wire.control import Gone
from tests.support.grouping import EPOCH
from tests.support.member import STREAM, SUB, Giver, MemberWorld


@pytest.fixture
def world() -> Iterator[MemberWorld]:
    made = MemberWorld()
    yield made
    made.close()


def notices(giver: Giver) -> list[Notice]:
    address = giver.work.addresses[0][1]
    return [
        Asked(giver.link, [giver.info], "worker", set(), True),
        Attached(giver.link, address, {STREAM: EPOCH}),
        Gone(SUB, STREAM, EPOCH, [(0, 1)], "overflow", 0),
        Sweep(1000.0),
        Parted(giver.link, "why"),
    ]


def test_every_kind_of_notice_is_understood(world: MemberWorld) -> None:
    given = notices(world.giver())
    assert {type(notice) for notice in given} == set(get_args(Notice))
    for notice in given:
        world.member.notify(notice)
    world.pump()
    assert not world.member.inbox
    assert not world.member.counters["io_errors"]


def test_a_notice_that_fails_does_not_keep_back_those_behind_it(world: MemberWorld) -> None:
    giver = world.giver()
    world.member.notify(Asked(None, [giver.info], "", set(), False))
    world.member.notify("no notice")  # type: ignore[arg-type]
    world.member.notify(Gone(SUB, STREAM, EPOCH, [(0, 1)], "overflow", 0))
    world.pump()
    assert world.member.loss_is_next()
    assert world.member.counters["io_errors"] == 1
