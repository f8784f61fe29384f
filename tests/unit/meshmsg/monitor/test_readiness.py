"""When a peer is not ready, and what is said then."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg import Monitor
from meshmsg.monitor.readiness import Disk, Problem, Readiness

GIB = 1 << 30


def stream(**values: Any) -> dict[str, Any]:
    row = {"stream": "a/s", "blocked": False, "blocked_by": [], "next": 0, "subscribers": []}
    return {**row, **values}


def stats(**values: Any) -> dict[str, Any]:
    return {
        "peer": "a", "problem": None, "name_in_use": [], "streams": {}, "links": [], **values,
    }  # fmt: skip


def found(figures: dict[str, Any], *disks: Disk, connect: tuple[str, ...] = ()) -> list[Problem]:
    return Readiness(Monitor("127.0.0.1:0"), connect).problems(figures, disks, now=100.0)


def test_a_peer_without_trouble_is_ready() -> None:
    log = {"open": True, "problem": None}
    assert found(stats(streams={"s": stream(log=log)}), Disk("/d", 10 * GIB, 100 * GIB)) == []


@pytest.mark.parametrize(
    ("figures", "check", "text"),
    [
        (stats(problem="its thread has ended"), "peer", "its thread has ended"),
        (
            stats(name_in_use=[{"stream": "a/s", "address": "tcp://h:1"}]),
            "streams",
            "others take it from the peer of the same name at tcp://h:1",
        ),
        (
            stats(streams={"s": stream(log={"open": True, "problem": "disk full"})}),
            "streams",
            "disk full",
        ),
        (
            stats(streams={"s": stream(log={"open": False, "path": "x"})}),
            "streams",
            "its log is not open",
        ),
        (stats(streams={"s": stream(spill={"problem": "no room"})}), "streams", "no room"),
        (stats(recorder={"problem": "read-only"}), "streams", "read-only"),
    ],
)
def test_what_is_wrong_is_said(figures: dict[str, Any], check: str, text: str) -> None:
    (problem,) = found(figures)
    assert (problem.check, problem.problem) == (check, text)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("up", ""),
        ("duplicate", ""),
        ("dialling", "is dialling"),
        ("refused", "is refused: other mesh"),
        (None, "is not dialled"),
    ],
)
def test_peers_that_connect_names_are_connected(state: str | None, text: str) -> None:
    link = {"address": "tcp://h:1", "state": state, "reason": "other mesh"}
    if state == "dialling":
        link["reason"] = ""
    others = {"address": "tcp://found:2", "state": "dialling", "reason": ""}  # nobody named it
    links = [others] if state is None else [link, others]
    got = [problem.problem for problem in found(stats(links=links), connect=("tcp://h:1",))]
    assert got == ([text] if text else [])


@pytest.mark.parametrize(
    ("free", "size", "good"),
    [
        (2 * GIB, 1000 * GIB, True),  # little of a large disk, and more than 1 GiB
        (GIB // 10, GIB, True),  # less than 1 GiB of a small one, and more than 5 %
        (GIB // 2, 100 * GIB, False),
        (0, 0, False),  # it could not be asked
    ],
)
def test_disks_have_room(free: int, size: int, good: bool) -> None:
    got = found(stats(), Disk("/d", free, size))
    assert [problem.check for problem in got] == ([] if good else ["disks"])


def test_a_stream_may_be_blocked_for_a_while() -> None:
    readiness = Readiness(Monitor("127.0.0.1:0", blocked_max="10s"), ())

    def at(now: float, **values: Any) -> list[str]:
        figures = stats(streams={"s": stream(blocked=True, blocked_by=["b/slow#1"], **values)})
        return [problem.problem for problem in readiness.problems(figures, (), now=now)]

    assert at(0.0) == []
    assert at(9.0) == []
    assert at(11.0) == ["for 11 s by b/slow#1"]
    assert at(12.0, next=5) == []  # it was open meanwhile
    waiting = [{"blocking": True, "blocked_s": 33.0}, {"blocking": False, "blocked_s": 99.0}]
    assert at(13.0, next=5, subscribers=waiting) == ["for 33 s by b/slow#1"]


def test_limits_are_settings() -> None:
    limits = Monitor("127.0.0.1:0", blocked_max="1m", disk_free_min="10GiB", disk_share_min=0.5)
    readiness = Readiness(limits, ())
    waiting = [{"blocking": True, "blocked_s": 33.0}]
    figures = stats(streams={"s": stream(blocked=True, subscribers=waiting)})
    disks = [Disk("/d", 5 * GIB, 100 * GIB)]
    got = readiness.problems(figures, disks, now=0.0)
    assert [problem.check for problem in got] == ["disks"]
