"""What is at each path, and who may see it: a request in, an answer out; no socket.

Figures are taken at most so often that they cost `WORK_SHARE` of the time, however often somebody
asks: in between everybody gets what the last one got.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import msgspec

from meshmsg._model.errors import ClosedError
from meshmsg.monitor.exposition import OPENMETRICS, render
from meshmsg.monitor.http_messages import Answer, Request
from meshmsg.monitor.metrics import Collection, Metric, Sample
from meshmsg.monitor.page import page_answers
from meshmsg.monitor.parts import Part, View
from meshmsg.monitor.readiness import Problem
from meshmsg.transports.discovery.addresses import is_loopback

READY = Metric("meshmsg_ready", "gauge", "1 while a check of readiness is good", ("check",))
COUNTS = Metric("meshmsg_monitor_counts", "counter", "Counters of the monitor", ("counter",))
SERIES = Metric("meshmsg_monitor_series", "gauge", "Time series that are shown")
#: Of the monitor; those that are not there yet show as 0, so that growth is seen.
COUNTERS = (
    "connections",
    "requests",
    "bad_requests",
    "unauthorized",
    "strange_hosts",
    "timeouts",
    "hung_up",
    "connections_full",
    "accepts_delayed",
    "accepts_failed",
    "failures",
    "series_dropped",
    "watchers_full",
    "slow_watchers",
    "snapshots_skipped",
    "snapshots_cut",
)
#: What looking may cost at most, of the time of one processor.
WORK_SHARE = 0.05
#: How old figures may be in any case.
AGE_S = 0.1
#: What names nothing: an orchestrator's probe needs no token.
OPEN = ("/health",)
INDEX = """\
meshmsg monitor of {name}

/           the live page, in a browser
/events     what the page shows, as server-sent events
/metrics    for Prometheus (OpenMetrics)
/health     200 while the process is alive
/ready      200 while it can do its work, or 503 and what is wrong
/stats      all figures, as JSON
"""
JSON = "application/json"
EVENTS = "text/event-stream"


class Answers:
    """Answers for the parts of one program; `clock` is monotonic."""

    def __init__(
        self,
        name: str,
        parts: list[Part],
        secret: bytes | None,
        series_max: int,
        counters: Counter[str],
        clock: Callable[[], float],
        first_event: Callable[[], bytes],
    ) -> None:
        self._name = name
        self._parts = parts
        self._secret = secret
        self._series_max = series_max
        self.counters = counters
        self._clock = clock
        self._page = page_answers()
        self._bodies: dict[str, Answer] = {}
        self._good_until = -1.0
        self._paths: dict[str, Callable[[Request], Answer]] = {
            "/": lambda request: _text(INDEX.format(name=name)),
            "/health": lambda request: _text("alive\n"),
            "/metrics": self._metrics,
            "/ready": lambda request: self._fresh("/ready", self._ready),
            "/stats": lambda request: self._fresh("/stats", self._stats),
            "/events": lambda request: Answer(200, first_event(), EVENTS, follows=True),
        }

    def answer(self, request: Request) -> Answer:
        """The answer to a request."""
        if request.method not in ("GET", "HEAD"):
            return _text("only GET and HEAD\n", 405, (("Allow", "GET, HEAD"),))
        page = self._page.get(request.path)
        if page is not None and (request.path != "/" or _wants_page(request)):
            return page
        refusal = None if request.path in OPEN else self._refuse(request)
        if refusal is not None:
            return refusal
        what = self._paths.get(request.path)
        return _text("nothing is here: see /\n", 404) if what is None else what(request)

    def _refuse(self, request: Request) -> Answer | None:
        """An answer for those who may not see anything."""
        if self._secret is None:
            # On loopback. A web page may give its own name loopback's address, and read on.
            host = request.headers.get("host", "localhost")
            if is_loopback(host_of(host)):
                return None
            self.counters["strange_hosts"] += 1
            return _text("ask for 127.0.0.1 or localhost\n", 403)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.strip().encode("latin-1", "replace")
        if hmac.compare_digest(given, self._secret) and scheme.lower() == "bearer":
            return None
        self.counters["unauthorized"] += 1
        return _text("a token is needed\n", 401, (("WWW-Authenticate", "Bearer"),))

    # --- what costs something ---

    def _fresh(self, key: str, make: Callable[[], Answer]) -> Answer:
        """An answer that is not too old."""
        now = self._clock()
        if now >= self._good_until:
            self._bodies.clear()
            self._good_until = now + AGE_S
        answer = self._bodies.get(key)
        if answer is None:
            answer = self._bodies[key] = make()
            self._good_until += (self._clock() - now) / WORK_SHARE
        return answer

    def _views(self) -> Iterator[View | ClosedError]:
        for part in self._parts:
            try:
                yield part()
            except ClosedError as error:
                yield error

    def _metrics(self, request: Request) -> Answer:
        openmetrics = OPENMETRICS in request.headers.get("accept", "")
        return self._fresh(f"/metrics {openmetrics}", lambda: self._render(openmetrics))

    def _render(self, openmetrics: bool) -> Answer:
        views = list(self._views())
        found = Collection(self._series_max, self.counters)
        failing = {problem.check for problem in _problems(views)}
        looked = (view.checks for view in views if isinstance(view, View))
        checks = dict.fromkeys(("peer", *chain.from_iterable(looked)))
        found.add(Sample(READY, (check,), float(check not in failing)) for check in checks)
        own = {name: float(self.counters[name]) for name in COUNTERS}
        found.add(Sample(COUNTS, (name,), value) for name, value in own.items())
        for view in views:
            if isinstance(view, View):
                found.add(view.samples)
        found.families[SERIES] = [Sample(SERIES, (), float(found.shown))]
        body, content_type = render(found.families, openmetrics=openmetrics)
        return Answer(200, body, content_type)

    def _ready(self) -> Answer:
        wrong = _problems(list(self._views()))
        body = msgspec.json.encode([problem._asdict() for problem in wrong])
        return Answer(503 if wrong else 200, body + b"\n", JSON)

    def _stats(self) -> Answer:
        figures: dict[str, Any] = {}
        for view in self._views():
            if isinstance(view, ClosedError):
                return _text(f"{view}\n", 503)
            figures.update(view.figures)
        figures["monitor"] = {name: self.counters[name] for name in COUNTERS}
        return Answer(200, msgspec.json.encode(figures) + b"\n", JSON)


def _problems(views: list[View | ClosedError]) -> list[Problem]:
    wrong = []
    for view in views:
        if isinstance(view, ClosedError):
            wrong.append(Problem("peer", "", str(view)))
        else:
            wrong += view.problems
    return wrong


def _wants_page(request: Request) -> bool:
    """Whether a browser asks, and no curl."""
    return "text/html" in request.headers.get("accept", "")


def _text(text: str, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    return Answer(status, text.encode(), headers=headers)


def host_of(header: str) -> str:
    """The host of a `Host` header, without its port.

    >>> host_of("127.0.0.1:9401"), host_of("[::1]:9401"), host_of("localhost")
    ('127.0.0.1', '::1', 'localhost')
    """
    if header[:1] == "[":
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
