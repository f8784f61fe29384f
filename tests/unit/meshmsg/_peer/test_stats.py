"""Figures of a subscription and of a member, as `stats()` shows them."""

from __future__ import annotations

import json
from typing import Any

from meshmsg._groups.consumer import Member
from meshmsg._groups.consumer_messages import MemberSetup
from meshmsg._model.event import Loss, Position
from meshmsg._model.multicast_config import Multicast
from meshmsg._model.topics import TopicFilter
from meshmsg._peer.stats import fates, inlet_stats
from meshmsg._receive.incoming_stream import StartAt
from meshmsg._receive.multicast_receiver import info_of
from meshmsg._receive.subscription import member_options
from meshmsg.transports.udp.multicast import Datagram
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.work_queue import WorkInlet
from tests.scenarios.multicast.conftest import new_group
from tests.support.receiving import EPOCH, STREAM, admission, packets, receiving


def test_subscription_shows_what_became_of_each_stream() -> None:
    with receiving() as side:
        source = side.source()
        side.intake.epochs.on_admission(source, admission(), 0.0)
        side.give(source, 0, 5)
        side.intake.ready.put(source, [Loss(STREAM, EPOCH, 5, 7, "overflow")])
        side.taken()
        side.intake.refusals["x/b"] = "full"
        shown = inlet_stats("me/-", side.intake)
        (one,) = shown["sources"]
        assert (shown["name"], shown["topics"]) == ("me/-", ["a.**"])
        assert (shown["counters"]["lost"], shown["refusals"]) == (2, {"x/b": "full"})
        assert (one["stream"], one["epoch"], one["received"]) == (STREAM, EPOCH, 5)
        assert (one["delivered"], one["filtered"], one["lost"]) == (5, 0, {"overflow": 2})
        assert "multicast" not in one
        json.dumps(shown)


def test_stream_that_was_not_entered_is_not_shown_but_why_its_packets_are_refused() -> None:
    with receiving() as side:
        info = info_of(Multicast(new_group()), [("127.0.0.1", 4000)])
        side.source(multicast=info)
        (line,) = side.intake.reading.lines.values()
        (packet,) = packets((0, 1))
        stranger = Datagram(packet, len(packet), ("10.0.0.9", 1))
        side.intake.reading.on_datagram(line, stranger, 0.0)
        shown = inlet_stats("me/-", side.intake)
        assert shown["sources"] == []
        assert shown["counters"]["other_sources"] == 1


def test_multicast_figures_stand_with_their_stream() -> None:
    with receiving() as side:
        source = side.source(multicast=info_of(Multicast(new_group()), []))
        side.intake.epochs.on_admission(source, admission(), 0.0)
        (one,) = inlet_stats("me/-", side.intake)["sources"]
        assert (one["multicast"]["next"], len(one["multicast"]["lines"])) == (0, 1)


def test_member_shows_its_group() -> None:
    context = Context(None, 5.0)
    options = member_options("work", 10, 30.0, 5, "key", False)
    setup = MemberSetup(1, TopicFilter(("a.**",)), options, "default", None, Any, StartAt())
    member = Member(setup, WorkInlet(context, 10), lambda to, message: None, lambda: None)
    try:
        member.counters["redelivered"] += 2
        assert inlet_stats("me/-", member) == {
            "name": "me/-",
            "group": "work",
            "topics": ["a.**"],
            "counters": {"redelivered": 2},
            "evictions": [],
            "sources": [],
        }
    finally:
        member.close()
        context.close()


def test_an_event_is_followed_at_a_subscription() -> None:
    with receiving() as side:
        source = side.source()
        side.intake.epochs.on_admission(source, admission(), 0.0)
        side.give(source, 0, 5)
        side.intake.ready.put(source, [Loss(STREAM, EPOCH, 5, 7, "overflow")])
        side.taken()
        side.give(source, 7, 9)

        def fate(seq: int, epoch: int = EPOCH) -> list[tuple[str, str]]:
            rows = fates({7: side.intake}, str, Position(STREAM, epoch, seq))
            return [(row["state"], row["reason"]) for row in rows]

        assert fate(4) == [("taken", "")]
        assert fate(6) == [("lost", "overflow")]
        assert fate(20) == [("absent", "")]
        assert fate(4, EPOCH + 9) == []
        (row,) = fates({7: side.intake}, str, Position(STREAM, EPOCH, 4))
        assert (row["name"], row["patterns"], row["recorder"]) == ("7", ["a.**"], False)
