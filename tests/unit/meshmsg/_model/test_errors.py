"""The error tree: what can be caught as what, and that fields survive a process boundary."""

from __future__ import annotations

import pickle

import pytest

from meshmsg._model import errors as _errors
from meshmsg._model.errors import (
    EVENT_BYTES_MAX,
    BindError,
    ClosedError,
    ConfigError,
    EventTooLarge,
    ForkedError,
    LogError,
    LogFull,
    LogLocked,
    MeshError,
    NameInUse,
    NoStream,
    PayloadError,
    PeerRefused,
    ProtocolError,
    PublishTimeout,
    ReplayError,
    TopicError,
    WaitTimeout,
)
from meshmsg._model.event import EventsLost, Loss, Position

EACH: list[tuple[MeshError, type]] = [
    (ConfigError("f", "p"), ValueError),
    (TopicError("topic", "p"), ConfigError),
    (EventTooLarge("t", 10, 5), ValueError),
    (NoStream("t", ["a"]), LookupError),
    (ClosedError("x"), RuntimeError),
    (ForkedError(5), ClosedError),
    (BindError("a", "r"), OSError),
    (WaitTimeout("x"), TimeoutError),
    (PublishTimeout("s", 1.0, ["a"]), WaitTimeout),
    (NameInUse("p/s", "a"), MeshError),
    (PeerRefused("a", "r"), MeshError),
    (EventsLost(Loss("s", 1, 0, 5, "overflow")), MeshError),
    (PayloadError("x"), ValueError),
    (LogError("p", "x"), OSError),
    (LogFull("p", "x"), LogError),
    (LogLocked("p", 7), LogError),
    (ReplayError("a", "p"), MeshError),
    (ProtocolError("x"), MeshError),
]


def test_every_error_is_in_this_table() -> None:
    named = {kind for kind in vars(_errors).values() if isinstance(kind, type)}
    own = {kind for kind in named if issubclass(kind, MeshError)} - {MeshError}
    assert own | {EventsLost} == {type(error) for error, _ in EACH}


@pytest.mark.parametrize(("error", "kind"), EACH, ids=lambda value: type(value).__name__)
def test_each_is_caught_as_what_it_is_and_crosses_processes_whole(
    error: MeshError, kind: type
) -> None:
    assert isinstance(error, kind)
    assert isinstance(error, MeshError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_what_was_published_before_is_said_in_fields_and_text() -> None:
    error = EventTooLarge("t", 10, 5)
    assert (error.published, error.last) == (0, None)
    error.after(1234, Position("p/s", 7, 41))
    assert error.published == 1234
    assert "1,234 events of this call are published, the last one at" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.published, again.last) == (1234, Position("p/s", 7, 41))
    nothing = PayloadError("x")
    nothing.after(0, None)
    assert str(nothing) == "x (0 events of this call are published)"


@pytest.mark.parametrize(
    ("size", "advice"),
    [(EVENT_BYTES_MAX, "raise the stream's"), (EVENT_BYTES_MAX + 1, "no stream takes more than")],
)
def test_the_advice_for_a_large_event_is_one_that_helps(size: int, advice: str) -> None:
    assert advice in str(EventTooLarge("t", size, 5))


def test_who_holds_a_log_is_named_where_it_is_known() -> None:
    assert "process 7 writes" in str(LogLocked("p", 7))
    assert "another process writes" in str(LogLocked("p", 0))
