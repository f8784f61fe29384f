"""Questions between peers: who is answered, when, and with what."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from meshmsg._links.peer_queries import LEDGER_S, NEVER, WAITING_EACH_MAX, Questions
from meshmsg._model.errors import ClosedError, ProtocolError, WaitTimeout
from meshmsg._wire import control as c
from tests.support.linking import Linking, linking
from tests.support.waiting import wait_until


@pytest.fixture
def side() -> Iterator[Linking]:
    with linking() as made:
        yield made


@pytest.fixture
def questions(side: Linking) -> Questions:
    return side.questions


def answers(side: Linking, to: bytes) -> list[tuple[int, object]]:
    return [(one.number, c.decode_answer(one)) for one in side.said(c.Answer, to)]


# Asked of us -----------------------------------------------------------------------------------


def test_clock_is_answered_at_once(side: Linking, questions: Questions) -> None:
    questions.on_ask(b"x", c.Ask(7, "clock"), 0.0)
    ((number, body),) = answers(side, b"x")
    assert number == 7
    assert set(body) == {"time_ns"}  # type: ignore[call-overload]


def test_events_are_looked_at_one_at_a_time_within_a_share_of_the_time(
    side: Linking, questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshmsg._links.peer_queries._platform.monotonic", lambda: 10.1)
    for number in (1, 2):
        questions.on_ask(b"x", c.Ask(number, "trace", c.Place("shop/a", 5, number)), 10.0)
    assert questions.on_tick(10.0) == pytest.approx(11.0)  # took 0.1 s
    assert answers(side, b"x") == [(1, {"peer": "me", "event": "shop/a@5:1"})]
    assert questions.on_tick(11.0) == NEVER
    assert [number for number, _ in answers(side, b"x")] == [1, 2]


def test_a_trace_of_no_event_and_an_event_of_something_else_are_refused(
    questions: Questions,
) -> None:
    for ask in (c.Ask(1, "trace"), c.Ask(1, "stats", c.Place("shop/a", 5, 1))):
        with pytest.raises(ProtocolError, match="asked for"):
            questions.on_ask(b"x", ask, 0.0)


def test_who_asks_after_too_many_events_is_not_answered(
    side: Linking, questions: Questions
) -> None:
    ask = c.Ask(1, "trace", c.Place("shop/a", 5, 1))
    for _ in range(WAITING_EACH_MAX + 3):
        questions.on_ask(b"x", ask, 0.0)
    assert side.counters["questions_dropped"] == 3


def test_figures_are_put_together_once_for_all_who_wait(
    side: Linking, questions: Questions
) -> None:
    side.figures = {"streams": ["a"]}
    questions.on_ask(b"x", c.Ask(7, "stats"), 0.0)
    questions.on_ask(b"y", c.Ask(9, "stats"), 0.0)
    assert side.sent == []
    questions.on_tick(0.0)
    assert answers(side, b"x") == [(7, {"streams": ["a"]})]
    assert answers(side, b"y") == [(9, {"streams": ["a"]})]


def test_who_asks_again_waits_for_the_share_of_time_that_figures_have(
    side: Linking, questions: Questions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshmsg._links.peer_queries._platform.monotonic", lambda: 10.1)
    questions.on_ask(b"x", c.Ask(1, "stats"), 10.0)
    assert questions.on_tick(10.0) == NEVER  # took 0.1 s
    questions.on_ask(b"x", c.Ask(2, "stats"), 10.2)
    assert questions.on_tick(10.2) == pytest.approx(11.0)
    assert [number for number, _ in answers(side, b"x")] == [1]
    questions.on_tick(11.0)
    assert [number for number, _ in answers(side, b"x")] == [1, 2]


def test_ledger_waits_until_subscribers_have_answered(side: Linking, questions: Questions) -> None:
    questions.on_ask(b"x", c.Ask(7, "ledger"), 0.0)
    due = questions.on_tick(0.0)
    assert side.refreshed == 1
    assert answers(side, b"x") == []
    side.answered = 1
    questions.on_tick(due)
    assert answers(side, b"x") == [(7, {"peer": "me", "rows": []})]
    assert questions.on_tick(due) == NEVER


def test_ledger_is_told_without_subscribers_that_do_not_answer(
    side: Linking, questions: Questions
) -> None:
    questions.on_ask(b"x", c.Ask(7, "ledger"), 0.0)
    questions.on_tick(0.0)
    questions.on_tick(LEDGER_S - 0.1)
    assert answers(side, b"x") == []
    questions.on_tick(LEDGER_S)
    assert len(answers(side, b"x")) == 1


@pytest.mark.parametrize("what", ["", "secrets", "Stats"])
def test_other_questions_are_bad_form(questions: Questions, what: str) -> None:
    with pytest.raises(ProtocolError):
        questions.on_ask(b"x", c.Ask(7, what), 0.0)


def test_one_peer_has_only_so_many_questions_and_others_theirs(
    side: Linking, questions: Questions
) -> None:
    for number in range(WAITING_EACH_MAX + 3):
        questions.on_ask(b"x", c.Ask(number, "stats" if number % 2 else "ledger"), 0.0)
    questions.on_ask(b"y", c.Ask(1, "stats"), 0.0)
    assert side.counters["questions_dropped"] == 3
    questions.on_tick(0.0)
    assert len(answers(side, b"y")) == 1


# Asked by us -----------------------------------------------------------------------------------


def answer_in_time(side: Linking, answer: c.Answer, source: bytes = b"x") -> threading.Thread:
    """The I/O thread, which reads an answer as soon as something was asked."""

    def read() -> None:
        wait_until(lambda: side.said(c.Ask))
        side.questions.on_answer(source, answer)

    thread = threading.Thread(target=read)
    thread.start()
    return thread


def test_answer_is_of_whom_was_asked(side: Linking, questions: Questions) -> None:
    body = c.encode_answer(0, {"peer": "far"})
    thread = answer_in_time(side, c.Answer(1, body.body))
    assert questions.ask(b"x", "tcp://x", "stats", 30.0) == {"peer": "far"}
    thread.join()
    assert side.said(c.Ask, b"x") == [c.Ask(1, "stats")]


def test_one_that_is_silent_costs_nobody_elses_answer(side: Linking, questions: Questions) -> None:
    def read() -> None:
        wait_until(lambda: len(side.said(c.Ask)) == 2)
        questions.on_answer(b"y", c.Answer(2, c.encode_answer(0, {"peer": "b"}).body))
        questions.close()

    thread = threading.Thread(target=read)
    thread.start()
    found = questions.ask_all({"tcp://x": b"x", "tcp://y": b"y"}, "stats", 30.0)
    thread.join()
    assert found["tcp://y"] == {"peer": "b"}
    assert isinstance(found["tcp://x"], WaitTimeout)
    assert questions.kinds_awaited(b"x") == ()


def test_large_answer_is_awaited_from_whom_was_asked_and_nobody_else(
    side: Linking, questions: Questions
) -> None:
    seen = {}

    def look() -> None:
        wait_until(lambda: side.said(c.Ask))
        seen.update({who: questions.kinds_awaited(who) for who in (b"x", b"y")})
        questions.close()

    thread = threading.Thread(target=look)
    thread.start()
    with pytest.raises(WaitTimeout):
        questions.ask(b"x", "tcp://x", "stats", 30.0)
    thread.join()
    assert seen == {b"x": ("answer",), b"y": ()}
    assert questions.kinds_awaited(b"x") == ()


@pytest.mark.parametrize(("number", "source"), [(1, b"y"), (2, b"x")])
def test_answer_of_somebody_else_or_to_something_else_is_none(
    side: Linking, questions: Questions, number: int, source: bytes
) -> None:
    body = c.encode_answer(0, {}).body
    questions.on_answer(source, c.Answer(number, body))  # nobody asked
    thread = answer_in_time(side, c.Answer(number, body), source)
    with pytest.raises(WaitTimeout, match=r"tcp://x: no answer about its stats"):
        questions.ask(b"x", "tcp://x", "stats", 0.1)
    thread.join()


def test_answer_that_cannot_be_read_is_none(side: Linking, questions: Questions) -> None:
    thread = answer_in_time(side, c.Answer(1, b"\xc1"))
    with pytest.raises(WaitTimeout, match="cannot be read"):
        questions.ask(b"x", "tcp://x", "stats", 30.0)
    thread.join()


def test_who_asks_is_told_that_the_peer_has_ended(side: Linking, questions: Questions) -> None:
    side.failed = ClosedError("the I/O thread ended")
    with pytest.raises(ClosedError, match="I/O thread"):
        questions.ask(b"x", "tcp://x", "stats", 0.0)


def test_after_the_first_answer_no_other_is_kept_or_read(
    side: Linking, questions: Questions
) -> None:
    seen = []

    def read() -> None:
        wait_until(lambda: len(side.said(c.Ask)) == 2)
        for n in range(3):
            questions.on_answer(b"x", c.Answer(1, c.encode_answer(0, n).body))
        seen.append((questions.kinds_awaited(b"x"), len(questions._asked[1][1])))
        questions.on_answer(b"y", c.Answer(2, c.encode_answer(0, 9).body))

    thread = threading.Thread(target=read)
    thread.start()
    assert questions.ask_all({"x": b"x", "y": b"y"}, "stats", 30.0) == {"x": 0, "y": 9}
    thread.join()
    assert seen == [((), 1)]
