"""Orders of operators: who may give them, which part serves them, what is answered and noted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from meshmsg import LogError
from meshmsg._peer.operations import Operations
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.log_limit import LINES_MAX
from meshmsg._wire import control as c
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.transports.zmq.control import Request
from tests.support.linking import FAR, client

X = b"x"


class World:
    def __init__(self, data_dir: str | None = None, problem: str = "") -> None:
        self.answers: list[Any] = []
        self.counters: Counter[str] = Counter()
        self.gate, self.groups, self.subscribers = Mock(), Mock(), Mock()
        self.gate.why_not_operate.return_value = problem
        self.operator = self.groups.operator
        self.operator.evict.return_value = []
        self.subscribers.named.return_value = []
        self.replay = SimpleNamespace(submit=lambda key, job: job())
        self.audit, self.drain = Mock(), Mock(return_value=[{"drains_within_s": 3.0}])
        self.put_out = Mock(return_value=[])
        self.operations = Operations(
            "me",
            data_dir,
            ControlSender(self._send, lambda to: 0, lambda to: Owner(""), Counter()),
            self.gate,
            self.groups,
            self.subscribers,
            self.replay,  # type: ignore[arg-type]
            self.audit,
            self.put_out,
            self.drain,
            self.counters,
        )

    def _send(self, to: Any, parts: list[bytes]) -> bool:
        message = c.decode_message(parts[0])
        assert isinstance(message, c.Answer)
        self.answers.append((to, message.number, c.decode_answer(message)))
        return True

    def give(self, action: str, name: str = "g", **more: Any) -> dict[str, Any]:
        order = c.Operate(7, action, name, **more)  # type: ignore[arg-type]
        request = Request(X, "10.0.0.1", b"", 7, [])
        self.operations.on_order(request, client("far", FAR), order, 1.0)
        ((to, number, answer),) = self.answers
        assert (to, number) == (X, 7)
        return dict(answer)


def test_who_may_not_is_told_and_noted_and_nothing_happens() -> None:
    world = World(problem="you may not")
    answer = world.give("group pause")
    assert (answer["problem"], answer["done"]) == ("you may not", [])
    assert world.counters["not_permitted"] == 1
    assert not world.operator.method_calls
    ((_, fields),) = world.audit.note.call_args_list
    assert fields["problem"] == "you may not"


def test_flood_of_orders_that_are_refused_writes_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(problem="you may not")
    for n in range(200):
        world.give("group pause", f"g{n}")
        world.answers.clear()
    assert 1 <= len(caplog.records) <= LINES_MAX
    assert world.counters["log_lines_dropped"] == 200 - len(caplog.records)
    assert not world.audit.note_done.called  # and the notes of strangers have a bound


def test_what_was_done_is_always_written_down(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.operator.pause.return_value = [{"group": "g"}]
    for _ in range(2 * LINES_MAX):
        world.give("group pause")
        world.answers.clear()
    assert len(caplog.records) == 2 * LINES_MAX
    assert world.audit.note_done.call_count == 2 * LINES_MAX


@pytest.mark.parametrize(("action", "paused"), [("group pause", True), ("group resume", False)])
def test_pause_and_resume(action: str, paused: bool) -> None:
    world = World()
    world.operator.pause.return_value = [{"group": "g"}]
    assert world.give(action)["done"] == [{"group": "g"}]
    assert world.operator.pause.call_args.kwargs == {"paused": paused, "now": 1.0}
    ((what, fields),) = [(one.args, one.kwargs) for one in world.audit.note_done.call_args_list]
    assert what == ("operated",)
    assert (fields["action"], fields["peer"], fields["changed"]) == (action, "far", 1)


def test_reset_and_redrive_answer_when_they_are_done() -> None:
    world = World()
    world.operator.reset = lambda order, answer, now: answer([{"to": "1:2"}], "")
    assert world.give("group reset")["done"] == [{"to": "1:2"}]
    world = World()
    world.groups.redriver.redrive = lambda order, seats, answer: answer([], "no disk")
    assert world.give("group redrive")["problem"] == "no disk"


def test_group_that_is_not_there() -> None:
    world = World()
    world.operator.chosen.return_value = []
    world.operator.missing.return_value = "there is none"
    assert world.give("group reset")["problem"] == "there is none"


def test_dry_run_is_not_written_down() -> None:
    world = World()
    world.operator.pause.return_value = [{"group": "g"}]
    assert world.give("group pause", dry_run=True)["dry_run"] is True
    assert not world.audit.method_calls


def test_evict_reaches_members_subscriptions_and_peers() -> None:
    world = World()
    remote = SimpleNamespace(label="anna/one#1")
    world.operator.evict.return_value = [{"member": "anna/-#2"}]
    world.subscribers.named.return_value = [remote]
    world.put_out.return_value = [{"peer": "anna"}]
    answer = world.give("evict", "anna")
    assert answer["done"] == [
        {"member": "anna/-#2"},
        {"subscription": "anna/one#1"},
        {"peer": "anna"},
    ]
    assert world.subscribers.put_out.call_args.args[0] is remote
    assert world.put_out.call_args.args[3] is False


def test_evict_in_a_dry_run_and_of_nobody() -> None:
    world = World()
    world.subscribers.named.return_value = [SimpleNamespace(label="anna/one#1")]
    world.give("evict", "anna", dry_run=True)
    assert not world.subscribers.put_out.called
    assert world.put_out.call_args.args[3] is True
    assert World().give("evict", "x")["problem"] == "nobody here is called 'x'"


def test_drain_is_answered_at_once() -> None:
    world = World()
    assert world.give("drain", "", within_s=3.0)["done"] == [{"drains_within_s": 3.0}]
    assert world.drain.call_args.args == (3.0, False)


def test_cursors_need_a_folder_and_a_disk_that_works(tmp_path: Path) -> None:
    assert "no data_dir" in World().give("cursor ls")["problem"]
    world = World(str(tmp_path))
    assert world.give("cursor ls") == {
        "peer": "me",
        "dry_run": False,
        "done": [],
        "problem": "",
    }
    assert not world.audit.method_calls  # who only looks is not noted
    world = World(str(tmp_path))
    world.operations._moves = Mock()
    world.operations._moves.do.side_effect = LogError("here", "broken")
    assert "broken" in world.give("cursor drop", "x")["problem"]
