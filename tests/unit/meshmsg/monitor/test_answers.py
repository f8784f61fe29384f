"""Paths, who may see them, and how often figures are taken."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from meshmsg import ClosedError
from meshmsg.monitor.answers import AGE_S, COUNTERS, WORK_SHARE, Answers, host_of
from meshmsg.monitor.http_messages import Request
from meshmsg.monitor.metrics import Metric, Sample
from meshmsg.monitor.parts import View
from meshmsg.monitor.readiness import CHECKS, Problem

TOKEN = "0123456789abcdef0123"


class World:
    """A part whose looks take time, and the clock that they take it from."""

    def __init__(self, secret: bytes | None = None) -> None:
        self.now = 1_000.0
        self.looks = 0
        self.took_s = 0.0
        self.problems: list[Problem] = []
        self.closed = False
        self.counters: Counter[str] = Counter()
        self.answers = Answers(
            "a",
            [self.look],
            secret,
            100,
            self.counters,
            lambda: self.now,
            lambda: b"data: {}\n\n",
        )

    def look(self) -> View:
        if self.closed:
            raise ClosedError("the peer is closed")
        self.looks += 1
        self.now += self.took_s
        sample = Sample(Metric("meshmsg_looks", "gauge", "Looks"), (), float(self.looks))
        return View({"looks": self.looks}, [sample], self.problems, CHECKS)

    def get(self, path: str, method: str = "GET", **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.answers.answer(Request(method, path, {"host": "localhost", **named}))


def test_each_path_answers() -> None:
    world = World()
    for path in ("/", "/metrics", "/health", "/ready", "/stats"):
        assert world.get(path).status == 200, path
    assert world.get("/nothing").status == 404
    assert world.get("/metrics", "POST").status == 405
    assert world.get("/metrics", "HEAD").status == 200
    assert set(json.loads(world.get("/stats").body)["monitor"]) == set(COUNTERS)


def test_what_is_wrong_is_listed() -> None:
    world = World()
    assert json.loads(world.get("/ready").body) == []
    world.now += 1
    world.problems = [Problem("disks", "/data", "is full")]
    answer = world.get("/ready")
    assert answer.status == 503
    assert json.loads(answer.body) == [{"check": "disks", "what": "/data", "problem": "is full"}]
    assert b'meshmsg_ready{check="disks"} 0.0' in world.get("/metrics").body
    assert b'meshmsg_ready{check="links"} 1.0' in world.get("/metrics").body


def test_a_closed_peer_is_alive_and_not_ready() -> None:
    world = World()
    world.closed = True
    assert world.get("/health").status == 200
    assert world.get("/ready").status == 503
    assert world.get("/stats").status == 503
    assert b'meshmsg_ready{check="peer"} 0.0' in world.get("/metrics").body


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Basic {TOKEN}", 401),
        ("Bearer wrong", 401),
        (f"Bearer {TOKEN}x", 401),
        ("Bearer ", 401),
        ("Bearer \xff\u0100", 401),
        ("", 401),
    ],
)
def test_a_token_is_asked_for(header: str, status: int) -> None:
    world = World(TOKEN.encode())
    for path in ("/metrics", "/ready", "/stats", "/", "/nothing"):
        assert world.get(path, authorization=header).status in (status, 404 if status == 200 else 0)
    assert world.counters["unauthorized"] == (0 if status == 200 else 5)
    assert world.get("/health").status == 200


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("localhost:9401", True),
        ("127.0.0.1:9401", True),
        ("[::1]:9401", True),
        ("evil.example:9401", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_a_page_of_another_name_reads_nothing(host: str, good: bool) -> None:
    world = World()
    assert world.get("/stats", host=host).status == (200 if good else 403)
    assert world.counters["strange_hosts"] == (0 if good else 1)


def test_hosts_are_taken_apart() -> None:
    assert [host_of(x) for x in ("a:1", "a", "[::1]:2", "[::1]")] == ["a", "a", "::1", "::1"]


def test_looking_costs_a_part_of_the_time_however_often_somebody_asks() -> None:
    world = World()
    world.took_s = 0.02
    began = world.now
    while world.now < began + 20:
        for path in ("/metrics", "/ready", "/stats"):
            world.get(path)
        world.now += 0.01
    assert world.looks * world.took_s <= 20 * WORK_SHARE * 1.5
    assert world.looks > 5


def test_figures_are_young() -> None:
    world = World()
    world.get("/stats")
    world.get("/stats")
    assert world.looks == 1
    world.now += AGE_S
    assert json.loads(world.get("/stats").body)["looks"] == 2


def test_what_is_accepted_is_answered() -> None:
    world = World()
    assert world.get("/metrics").content_type.startswith("text/plain")
    for accept in ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"):
        assert "openmetrics" in world.get("/metrics", accept=accept).content_type
    # What the library would try to read as a version.
    world.get("/metrics", accept="application/openmetrics-text; version=x; escaping=\xff")


def test_a_browser_gets_the_page_and_what_it_is_made_of_without_a_token() -> None:
    world = World(TOKEN.encode())
    page = world.get("/", accept="text/html,*/*")
    assert (page.status, page.content_type) == (200, "text/html; charset=utf-8")
    assert world.get("/page.js").status == world.get("/page.css").status == 200
    assert world.get("/").status == 401  # curl is told what there is, with the peer's name
    assert world.get("/events", accept="text/html").status == 401
    assert world.get("/page_files/page.js", authorization=f"Bearer {TOKEN}").status == 404


def test_events_are_followed() -> None:
    answer = World().get("/events")
    assert (answer.status, answer.follows) == (200, True)
    assert answer.content_type == "text/event-stream"
