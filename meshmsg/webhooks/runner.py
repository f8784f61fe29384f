"""Delivers webhooks: one thread takes events out of the mesh into the book, one posts them.

The second is an event loop, so that an endpoint that hangs costs a socket and nothing else.  All
work on the book is done by a third thread, turn by turn: what came back is put down, then what is
due is looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from meshmsg._bridge.trace_context import trace_headers
from meshmsg._model.errors import ConfigError, LogError
from meshmsg._peer.peer import Peer, __version__
from meshmsg.recovery.log.files import REAL, File, Held
from meshmsg.webhooks.dead_letters import Undertaker
from meshmsg.webhooks.delivery_queue import Line
from meshmsg.webhooks.http_client import WebhookClient
from meshmsg.webhooks.ingest import Taker
from meshmsg.webhooks.retry import Alarms, Answer, Lane, Verdict, judge
from meshmsg.webhooks.signing import sign
from meshmsg.webhooks.store import Book, wall
from meshmsg.webhooks.types import Endpoint, batch_id, body_of, shared_headers
from meshmsg.webhooks.urls import Allowed

log = logging.getLogger("meshmsg.webhooks")

#: Endpoints whose deliveries are looked up in one turn; the others have theirs in the next.
TURN_MAX = 200
IDLE_S = 0.5
UPKEEP_EVERY_S = 5.0
#: Requests on the way at once, if the system grants that many files.
REQUESTS_MAX = 4_000
#: Names looked up at once, each by a thread while it takes (one for all posts to a name): as many
#: may have a name server that hangs before others have to wait for their lookups.
LOOKUPS_MAX = 500
CROWDED_S = 0.05
DRAIN_S = 5.0
AFTER_FAILURE_S = 1.0


class Outcome(NamedTuple):
    """A request that came back."""

    endpoint: Endpoint
    lines: list[Line]
    answer: Answer


class Job(NamedTuple):
    """A request to be sent."""

    endpoint: Endpoint
    lines: list[Line]


class Runner:
    """The threads behind `Webhooks`."""

    def __init__(self, peer: Peer, data_dir: str, keep_s: float, *, hold: bool) -> None:
        self._peer = peer
        self._data_dir = data_dir
        self._keep_s = keep_s
        self._hold = hold
        self._rng = Random()
        self._most = _requests_max()
        self.counters: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._lock: File | None = None
        self._threads: list[threading.Thread] = []
        self._started = threading.Event()
        # Of the event loop's thread:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._ready: set[str] = set()
        self._outcomes: list[Outcome] = []
        self._alarms = Alarms()
        self._tasks: set[asyncio.Task[None]] = set()
        # Of the book's thread:
        self._book: Book | None = None
        self._version = -1
        self._endpoints: dict[str, Endpoint] = {}
        self._lanes: dict[str, Lane] = {}
        self._upkeep = 0.0

    def start(self) -> None:
        """Begin; raises `ConfigError` if another process delivers from the folder, `LogError`."""
        self._lock = _locked(Path(self._data_dir) / "webhooks.lock")
        try:
            taken = Book(self._data_dir)
            self._book = Book(self._data_dir, durable=False)
        except BaseException:
            self._lock.close()
            raise
        parts = self._peer, taken, self._stopping, self.look, self.counters
        taker = Taker(*parts, hold=self._hold)
        self._undertaker = Undertaker(self._peer, self._book, self.counters)
        for target, name in ((taker.run, "take"), (self._post, "post")):
            thread = threading.Thread(target=target, name=f"meshmsg-webhooks-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._started.wait(30)

    def stop(self) -> None:
        """End; requests on the way get a moment, and what is then open is sent again next time."""
        self._stopping.set()
        self.look()
        for thread in self._threads:
            thread.join()
        if self._lock is not None:
            self._lock.close()

    @property
    def alive(self) -> bool:
        """Whether it still takes and posts."""
        return all(thread.is_alive() for thread in self._threads)

    def look(self, names: set[str] | None = None) -> None:
        """Some endpoints, or any, may have something to send.  From any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended, and says so itself
                loop.call_soon_threadsafe(self._nudge, names or set())

    def _nudge(self, names: set[str]) -> None:
        self._ready |= names
        if self._wake is not None:
            self._wake.set()

    # Posting ---------------------------------------------------------------------------------

    def _post(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # pragma: no cover - a defect: it must not pass in silence
            log.exception("webhooks are no longer delivered")
            self.counters["io_errors"] += 1
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        client = WebhookClient(self._most)
        # Names are looked up by threads, and a name server may hang as an endpoint may.
        lookups = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="meshmsg-webhooks-names")
        self._loop.set_default_executor(lookups)
        with ThreadPoolExecutor(1, thread_name_prefix="meshmsg-webhooks-book") as books:
            try:
                self._started.set()
                while not self._stopping.is_set():
                    try:
                        await self._turn(client, books)
                    except Exception:  # a defect: it must not end the deliveries
                        log.exception("a turn of the webhooks")
                        self.counters["io_errors"] += 1
                        await asyncio.sleep(AFTER_FAILURE_S)
                await self._drain(books)
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await client.close()
                await self._loop.run_in_executor(books, self._close_book)
                self._loop = None

    async def _turn(self, client: WebhookClient, books: ThreadPoolExecutor) -> None:
        """Put down what came back, send what is due, wait for more."""
        assert self._loop is not None
        assert self._wake is not None
        self._wake.clear()
        now = wall()
        self._ready |= self._alarms.due(now=now)
        outcomes, self._outcomes = self._outcomes, []
        names = {self._ready.pop() for _ in range(min(TURN_MAX, len(self._ready)))}
        on_the_way = len(self._tasks)
        jobs, timers, more = await self._loop.run_in_executor(
            books, self._work, outcomes, names, on_the_way
        )
        for job in jobs:
            task = self._loop.create_task(self._send(client, job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for timer in timers:
            self._alarms.ring(*timer)
        self._ready |= more
        if self._ready or self._outcomes:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):  # then it looks by itself
            await asyncio.wait_for(self._wake.wait(), self._alarms.wait_s(IDLE_S, now=wall()))

    async def _send(self, client: WebhookClient, job: Job) -> None:
        endpoint, lines = job
        try:
            answer = await self._request(client, endpoint, lines)
        except Exception as error:  # a defect: it must cost neither the delivery nor its place
            log.exception("a post to webhook %s", endpoint.name)
            self.counters["io_errors"] += 1
            answer = Answer(error=f"{type(error).__name__}: {error}"[:300])
        self._outcomes.append(Outcome(endpoint, lines, answer))
        self._nudge({endpoint.name})

    async def _request(
        self, client: WebhookClient, endpoint: Endpoint, lines: list[Line]
    ) -> Answer:
        events = [line.event for line in lines]
        body = body_of(events, endpoint.batch > 1)
        now = wall()
        ident = events[0].message if endpoint.batch == 1 else batch_id(events)
        headers = {
            "content-type": "application/json",
            "user-agent": f"meshmsg/{__version__}",
            **trace_headers(shared_headers(events)),
            **sign(endpoint.signing(now), ident, now, body),
        }
        return await client.post(
            endpoint.url,
            body,
            headers,
            allowed=Allowed.parse(endpoint.allow),
            timeout_s=endpoint.timeout_s,
        )

    async def _drain(self, books: ThreadPoolExecutor) -> None:
        """Give requests on the way a moment, and put down what came back."""
        assert self._loop is not None
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)
        outcomes, self._outcomes = self._outcomes, []
        await self._loop.run_in_executor(books, self._settle, outcomes)

    # The book's thread -----------------------------------------------------------------------

    def _close_book(self) -> None:
        if self._book is not None:
            self._book.close()

    def _work(
        self, outcomes: list[Outcome], names: set[str], on_the_way: int
    ) -> tuple[list[Job], list[tuple[float, str]], set[str]]:
        """One turn: jobs to send, times to look again, and endpoints that may have more."""
        assert self._book is not None
        try:
            self._settle(outcomes)
            names |= self._reload()
            if time.monotonic() >= self._upkeep:
                self._upkeep = time.monotonic() + UPKEEP_EVERY_S
                if self._undertaker.upkeep(
                    self._endpoints.values(), self._lanes, wall() - self._keep_s
                ):
                    self._upkeep = 0.0
            return self._due(names, self._most - on_the_way)
        except (LogError, sqlite3.Error) as error:  # nothing is forgotten, and it is tried again
            log.error("%s", error)
            self.counters["book_errors"] += 1
            time.sleep(AFTER_FAILURE_S)
            return [], [], names

    def _reload(self) -> set[str]:
        """Endpoints as they are now; the names of all if any has changed."""
        assert self._book is not None
        version = self._book.version()
        if version == self._version:
            return set()
        self._version = version
        self._endpoints = {one.name: one for one in self._book.endpoints()}
        holds = self._book.holds()
        for name in [name for name in self._lanes if name not in self._endpoints]:
            if not self._lanes[name].in_flight:
                del self._lanes[name]
        for name, one in self._endpoints.items():
            lane = self._lanes.get(name)
            if lane is None:
                lane = self._lanes[name] = Lane(one.order, one.concurrency)
                lane.hold_until = holds.get(name, 0.0)  # asked of the process before this one
            lane.order, lane.concurrency = one.order, one.concurrency
        return set(self._endpoints)

    def _due(
        self, names: set[str], room: int
    ) -> tuple[list[Job], list[tuple[float, str]], set[str]]:
        assert self._book is not None
        jobs: list[Job] = []
        timers: list[tuple[float, str]] = []
        more: set[str] = set()
        for name in names:
            endpoint = self._endpoints.get(name)
            if endpoint is None or endpoint.state != "active":
                continue
            now = wall()
            lane = self._lanes[name]
            if now < lane.hold_until:
                timers.append((lane.hold_until, name))
                continue
            requests = lane.room(now=now)
            if requests and room <= len(jobs):
                timers.append((now + CROWDED_S, name))
                continue
            requests = min(requests, room - len(jobs))
            if room - len(jobs) < self._most // 2:  # what hangs must leave a place for each
                requests = min(requests, 1 - lane.requests)
            if requests <= 0:
                continue  # looked at again when one of its own comes back
            try:
                parcels, due = self._book.due(endpoint, requests, lane.in_flight, now=now)
            except (LogError, sqlite3.Error) as error:
                log.error("%s", error)
                self.counters["book_errors"] += 1
                timers.append((now + AFTER_FAILURE_S, name))
                continue
            for lines in parcels:
                lane.begin([line.id for line in lines])
                jobs.append(Job(endpoint, lines))
            if due is not None:
                timers.append((due, name))
            elif parcels and lane.room(now=now):
                more.add(name)
        return jobs, timers, more

    def _settle(self, outcomes: list[Outcome]) -> None:
        """Put down what came back; only then may the same delivery be sent again."""
        assert self._book is not None
        now = wall()
        judged = []
        for endpoint, lines, answer in outcomes:
            lane = self._lanes.get(endpoint.name)
            patient = lane is None or lane.is_patient(endpoint.schedule_s, now=now)
            known = (lines[0].attempts, endpoint.schedule_s)
            verdict = judge(answer, *known, now=now, rng=self._rng, patient=patient)
            if verdict.word in ("dead", "gone"):
                verdict = self._undertaker.bury(endpoint, lines, verdict)
            judged.append((endpoint.name, lines, verdict, answer.status))
        if not judged:
            return
        judged = self._undertaker.make_safe(judged)
        while True:
            try:
                self._book.record(judged, now=now)
                break
            except LogError as error:
                log.error("%s", error)
                self.counters["book_errors"] += 1
                if self._stopping.wait(AFTER_FAILURE_S):
                    break
        for name, lines, verdict, _ in judged:
            lane = self._lanes.get(name)
            if lane is not None and lane.end([line.id for line in lines], verdict, now=now):
                self._book.wake(name, now=now)
            self._count(verdict, len(lines))
        for (_, lines, verdict, status), (endpoint, _, _) in zip(judged, outcomes, strict=True):
            if verdict.word in ("dead", "gone"):
                self._undertaker.consider(endpoint, lines, verdict, status)
                self._upkeep = 0.0  # if that disabled it, what waits is not to wait any more

    def _count(self, verdict: Verdict, events: int) -> None:
        self.counters["requests"] += 1
        if verdict.word == "delivered":
            self.counters["delivered"] += events
        elif verdict.word == "retry":
            self.counters["failed_requests"] += 1
        else:
            self.counters["failed_requests"] += 1
            self.counters["dead"] += events

    def figures(self) -> dict[str, Any]:
        """Counters, and how many requests are on the way."""
        return {**dict(sorted(self.counters.items())), "on_the_way": len(self._tasks)}


def _requests_max() -> int:
    """As many as the system grants files for, with some left for the rest of the process."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return REQUESTS_MAX if files < 0 else max(10, min(REQUESTS_MAX, files - 200))


def _locked(path: Path) -> File:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return REAL.lock(str(path))
    except Held as other:
        who = f"another process (pid {other.pid or 'unknown'})"
        problem = f"{who} delivers the webhooks of {path.parent} already"
        raise ConfigError("data_dir", problem) from None
