"""Which part of a peer serves a request of somebody who dialled it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest

from meshmsg._peer.served_streams import NOT_PERMITTED, ServedStreams
from meshmsg._replay.log_server import LogEntry
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._wire import control as c
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.transports.zmq.control import Request
from tests.support.linking import FAR, client, stream
from tests.support.receiving import EPOCH
from tests.support.samples import sample_of

CLIENT = client("far", FAR)
X = b"x"


class Side:
    """A publisher, a recorder and a reader of logs, which say what they were asked."""

    def __init__(self, *, records: bool = False) -> None:
        self.sent: list[Any] = []
        self.publisher, self.service, self.lender = Mock(), Mock(), Mock()
        self.publisher.infos.return_value = [stream("me/a")]
        self.publisher.tails.return_value = [c.Tail("me/a", EPOCH, 0, 5)]
        self.publisher.outlets.return_value = []
        self.publisher.topics_of = {"me/a": "a.**"}.get
        self.lender.infos.return_value = [stream("x/b")]
        self.lender.tails.return_value = [c.Tail("x/b", EPOCH, 0, 9)]
        self.lender.on_request = lambda identity, message: message
        self.lender.entries.return_value = ["recorded"]
        self.lender.log_of = {"x/b": SimpleNamespace(topics="b.**")}.get

        def send(to: Any, parts: list[bytes]) -> bool:
            self.sent.append((to, c.decode_message(parts[0])))
            return True

        control = ControlSender(send, lambda to: 0, lambda to: Owner(""), Counter())
        lender = self.lender if records else None
        self.operate = Mock()
        self.streams = ServedStreams(control, self.publisher, lender, self.service, self.operate)

    def serve(self, message: c.Message, who: Any = CLIENT) -> bool:
        request = Request(X, "10.0.0.1", b"", 7, [])
        return self.streams.serve(request, who, message, 1.0)


def one(kind: type[Any]) -> Any:
    return sample_of(kind, 1)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (c.Commit, "subscribers.on_commit"),
        (c.Nack, "subscribers.on_nack"),
        (c.Status, "subscribers.on_status"),
        (c.Subscribe, "subscribers.on_subscribe"),
        (c.Settle, "on_settle"),
        (c.Join, "on_join"),
    ],
)
def test_request_about_a_stream_goes_to_the_publisher(kind: type[Any], place: str) -> None:
    side = Side()
    message = one(kind)
    assert side.serve(message)
    ((name, given, _),) = side.publisher.method_calls
    assert name == place
    assert (given[0], message in given) == (X, True)


@pytest.mark.parametrize("kind", [c.Ping, c.Bye, c.Taken, c.Answer])
def test_what_has_nothing_to_do_with_streams_is_left_to_others(kind: type[Any]) -> None:
    side = Side()
    assert not side.serve(one(kind))
    assert side.publisher.method_calls == []


def test_who_has_not_said_who_it_is_may_read_logs_and_nothing_else() -> None:
    side = Side()
    assert not side.serve(one(c.Nack), who=None)
    message = one(c.LogsPlease)
    assert side.serve(message, who=None)
    ((_, (asker, asked), _),) = side.service.method_calls
    assert asked is message
    assert (asker.identity, asker.owner, asker.fd) == (X, Owner("10.0.0.1", X), 7)


def test_recorder_sees_a_request_first_and_may_leave_a_part_of_it() -> None:
    side = Side(records=True)
    nack, rest = one(c.Nack), one(c.Nack)
    side.lender.on_request = {X: None}.get  # all of it is the recorder's
    assert side.serve(nack)
    assert side.publisher.method_calls == []
    side.lender.on_request = lambda identity, message: rest
    assert side.serve(nack)
    assert side.publisher.subscribers.on_nack.call_args == call(X, rest)


def test_own_and_recorded_streams_are_told_apart() -> None:
    alone, both = Side(), Side(records=True)
    assert alone.streams.infos() == ([stream("me/a")], [])
    assert both.streams.infos() == ([stream("me/a")], [stream("x/b")])
    assert alone.streams.tails()[1] == []
    assert [tail.stream for tail in both.streams.tails()[1]] == ["x/b"]
    assert alone.streams.logs() == []
    assert both.streams.logs() == ["recorded"]


@pytest.mark.parametrize(("name", "topics"), [("me/a", "a.**"), ("x/b", "b.**"), ("y/c", None)])
def test_topics_of_what_can_be_had_here(name: str, topics: str | None) -> None:
    assert Side(records=True).streams.topics_of(name) == topics
    assert Side().streams.topics_of("x/b") is None


def test_log_of_a_stream_of_ours_can_be_read() -> None:
    side = Side()
    log = SimpleNamespace(folder="there", next=9)
    config = SimpleNamespace(topics="a.**")
    durable = SimpleNamespace(
        stream="me/a", config=config, codec=SimpleNamespace(name="json"), epoch=3, log=log
    )
    side.publisher.outlets.return_value = [durable, SimpleNamespace(log=None)]
    assert side.streams.logs() == [LogEntry("me/a", "a.**", "json", "there", 3, 9)]


def test_refusal_is_said_in_the_words_of_the_request() -> None:
    side = Side()
    join, subscribe = one(c.Join), one(c.Subscribe)
    side.streams.refuse(X, join)
    assert side.sent == [(X, c.Unjoined(join.sub, NOT_PERMITTED, refused=True))]
    side.streams.refuse(X, subscribe)
    side.streams.refuse(X, one(c.Ping))  # of that nothing is said
    assert side.publisher.method_calls == [
        call.subscribers.refuse(X, subscribe, NOT_PERMITTED, final=True)
    ]


def test_who_leaves_is_forgotten_and_who_is_silent_may_come_back() -> None:
    side = Side(records=True)
    side.streams.forget(X, 5.0)
    side.streams.forget(X, 6.0, 2.0)
    assert side.publisher.method_calls == [call.forget_link(X, 5.0), call.lose_link(X, 2.0, 6.0)]
    assert side.lender.forget.call_count == 2
    side.streams.forget_silent({X: 1.0}, 7.0)
    assert side.publisher.groups.forget_silent.call_args == call({X: 1.0}, 7.0)
