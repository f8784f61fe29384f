"""The honest peers of an attack, each in a process of its own, and what they have seen.

    python -m tests.attack.honest '{"role": "shop", ...}'

A line of JSON in names what to do, a line of JSON out is the answer; the process ends with its
input.  Times are of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshmsg import Multicast, Peer, Record, Security, Stream, Subscription
from meshmsg._replay.log_client import ReplayClient
from meshmsg.recovery.stream.receiver import Run
from tests.attack.shape import come_first

#: Streams whose events go to a reader, complete, in order and once.
READ = ("vol", "log", "mc")
GROUP = "crew"
#: A group that nobody works for until the attack is over.
LATE_GROUP = "night"
#: Publishing calls that took longer are remembered.
SLOW_NS = 2_000_000
SLOW_MAX = 200_000
TEXTS_MAX = 20
#: As many files as most systems give a process.
FILES_MAX = 1024
LATE_EVENTS = 100


class LogWatch(logging.Handler):
    """Counts what a process logs, and keeps what tells of a defect."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = 0
        self.forged = 0
        self.levels: Counter[str] = Counter()
        self.exceptions: Counter[str] = Counter()
        self.samples: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += record.levelno >= logging.INFO
        self.levels[record.levelname] += 1
        text = record.getMessage()
        self.forged += "\n" in text or "\x1b" in text
        if record.levelno >= logging.WARNING and len(self.samples) < TEXTS_MAX:
            self.samples.append(text[:300])
        if record.exc_info:
            self._note(text, traceback.format_exception(*record.exc_info))

    def on_thread(self, args: threading.ExceptHookArgs) -> None:
        """A thread ended by an exception."""
        name = "?" if args.thread is None else args.thread.name
        lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        self._note(f"thread {name} ended", lines)

    def _note(self, text: str, lines: list[str]) -> None:
        """Keep each kind of exception once, and count it."""
        known = f"{text[:200]}\n{''.join(lines[-3:])}"
        if known in self.exceptions or len(self.exceptions) < TEXTS_MAX:
            self.exceptions[known] += 1


class Tally:
    """Which numbers came: in order, once, and how late."""

    def __init__(self) -> None:
        self.next = 0
        self.missing: set[int] = set()
        self.delivered = 0
        self.twice = 0
        self.out_of_order = 0
        self.foreign = 0
        self.raised: list[str] = []
        self.delays: list[tuple[int, int]] = []  #: when it was published, and how long it took

    def take(self, number: int, sent_ns: int) -> None:
        now = time.monotonic_ns()
        if number >= self.next:
            self.missing.update(range(self.next, number))
            self.next = number + 1
        elif number in self.missing:
            self.missing.discard(number)
            self.out_of_order += 1
        else:
            self.twice += 1
            return
        self.delivered += 1
        self.delays.append((sent_ns, now - sent_ns))

    def result(self) -> dict[str, Any]:
        return {
            "delivered": self.delivered,
            "next": self.next,
            "twice": self.twice,
            "out_of_order": self.out_of_order,
            "foreign": self.foreign,
            "raised": self.raised[:5],
            "raises": len(self.raised),
        }


class Honest:
    """One process of honest peers."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.watch = LogWatch()
        logger = logging.getLogger("meshmsg")
        logger.addHandler(self.watch)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        threading.excepthook = self.watch.on_thread
        self.name: str = order["role"]
        self.folder = Path(order["folder"])
        self.stopping = threading.Event()
        self.threads: set[threading.Thread] = set()
        self.peer = self.open()
        self.threads |= {t for t in threading.enumerate() if t.name.startswith("meshmsg-")}

    def open(self) -> Peer:
        return self.make(self.name, connect=self.order.get("connect", ()))

    def make(self, name: str, **options: Any) -> Peer:
        keys = self.order.get("keys")
        security = None if keys is None else Security(key_dir=str(Path(keys) / name))
        return Peer(name, security=security, **options).open()

    def run(self, work: Callable[..., None], *args: Any) -> None:
        """Do it on a thread of its own."""
        thread = threading.Thread(target=work, args=args, daemon=True, name=f"honest {args}")
        self.threads.add(thread)
        thread.start()

    # --- what it is asked ---

    def address(self) -> str:
        return self.peer.address

    def health(self) -> dict[str, Any]:
        """Whether all of it still runs, and what it had to say."""
        stats = self.peer.stats()
        recorder = stats.get("recorder", {})
        return {
            "counters": stats["counters"],
            "dead": sorted(t.name for t in self.threads if self._is_dead(t)),
            "lines": self.watch.lines,
            "forged": self.watch.forged,
            "exceptions": self.watch.exceptions,
            "samples": self.watch.samples,
            "problem": recorder.get("problem"),
            "recorded": {row["stream"]: row for row in recorder.get("streams", ())},
        }

    def _is_dead(self, thread: threading.Thread) -> bool:
        meant = self.stopping.is_set() and not thread.name.startswith("meshmsg-")
        return not thread.is_alive() and not meant

    def close(self) -> None:
        self.stopping.set()
        with contextlib.suppress(Exception):
            self.peer.close(timeout=1.0)


class Shop(Honest):
    """Publishes at a steady pace, and notes how long each call took."""

    def open(self) -> Peer:
        self._going = threading.Event()
        self.published: Counter[str] = Counter()
        self.slow: list[tuple[int, int]] = []
        log: Any = {"durability": "log", "fsync": "interval:50ms"}
        streams = [
            Stream("vol.**"),
            Stream("log.**", retention="64MB", segment_bytes="1MiB", **log),
            # At a rate: `slowest` waits for whoever subscribes, as it says, also for the attacker.
            Stream("mc.**", transport=Multicast(self.order["group"], flow="rate")),
            Stream("work.**", groups=(GROUP,), **log),
            Stream("jobs.**", groups=(LATE_GROUP,), **log),
            Stream("big.**"),
        ]
        return self.make("shop", streams=streams, data_dir=self.folder)

    def data_address(self) -> str:
        return str(self.peer._open_node()._fanout.addresses[0][1])

    def streams(self) -> dict[str, int]:
        """Names and epochs."""
        return {f"shop/{name}": row["epoch"] for name, row in self.peer.stats()["streams"].items()}

    def wait(self, counts: dict[str, int]) -> None:
        for name, count in counts.items():
            self.peer.wait_for_subscribers(f"{name}.x", count=count, timeout=60)

    def backlog(self, jobs: int, big: int) -> None:
        """Work for the night, and large frames that can be asked for again."""
        for at in range(0, jobs, 1000):
            stop = min(jobs, at + 1000)
            self.peer.publish_many("jobs.x", [[n, 0] for n in range(at, stop)])
        self.published["jobs"] += jobs
        for n in range(big):
            self.peer.publish("big.x", bytes([n % 256]) * 900_000)

    def start(self, rate: float) -> None:
        self._going.set()
        self.run(self._publish, 1.0 / rate)

    def _publish(self, pause_s: float) -> None:
        names = (*READ, "work")
        due, turn = time.monotonic(), 0
        while not self.stopping.is_set():
            if not self._going.is_set():
                self._going.wait(0.1)
                due = time.monotonic()
                continue
            due += pause_s
            ahead = due - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            name, turn = names[turn % len(names)], turn + 1
            began = time.monotonic_ns()
            # Its delay counts from when it was due: those behind a call that stood still are late.
            self.peer.publish(f"{name}.x", [self.published[name], int(due * 1e9)])
            took = time.monotonic_ns() - began
            self.published[name] += 1
            if took > SLOW_NS and len(self.slow) < SLOW_MAX:
                self.slow.append((began, took))

    def pause(self) -> None:
        self._going.clear()

    def go_on(self) -> None:
        self._going.set()

    def finish(self) -> dict[str, int]:
        self.stopping.set()
        for thread in self.threads:
            if thread.name.startswith("honest"):
                thread.join(60)
        with contextlib.suppress(Exception):
            self.peer.flush(timeout=20)
        return dict(self.published)

    def stalls(self, phases: dict[str, tuple[int, int]]) -> dict[str, float]:
        """The longest call of each phase, in seconds."""
        return {
            name: max((took for at, took in self.slow if first <= at < stop), default=0) / 1e9
            for name, (first, stop) in phases.items()
        }

    def groups(self) -> dict[str, Any]:
        """What the groups say of themselves."""
        rows = self.peer.stats()["streams"]
        return {name: rows[name].get("groups") for name in ("work.**", "jobs.**")}


class Reader(Honest):
    """Subscribes to each stream, and checks each event."""

    def open(self) -> Peer:
        peer = super().open()
        self.tallies = {name: Tally() for name in READ}
        self.events: dict[str, Subscription] = {}
        for name in READ:
            self.events[name] = peer.subscribe(f"{name}.**")
            self.run(self._read, name)
        return peer

    def _read(self, name: str) -> None:
        tally, events, stream = self.tallies[name], self.events[name], f"shop/{name}.**"
        while not self.stopping.is_set():
            try:
                event = events.get(timeout=0.2)
                if event is None:
                    continue
                if event.position.stream != stream:
                    tally.foreign += 1
                    continue
                tally.take(*event.data)
            except Exception as error:
                if not self.stopping.is_set():
                    tally.raised.append(repr(error)[:300])
                    time.sleep(0.01)

    def progress(self) -> dict[str, int]:
        return {name: tally.delivered for name, tally in self.tallies.items()}

    def tally(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, tally in self.tallies.items():
            losses = [x for x in self.events[name].losses if x.stream == f"shop/{name}.**"]
            found[name] = tally.result() | {"reported": sum(loss.count for loss in losses)}
        return found

    def delays(self, phases: dict[str, tuple[int, int]]) -> dict[str, dict[str, Any]]:
        """Of the events that were published in each phase, in milliseconds."""
        found = {}
        for phase, (first, stop) in phases.items():
            by_name = {
                name: [delay for sent, delay in tally.delays if first <= sent < stop]
                for name, tally in self.tallies.items()
            }
            every = [delay for some in by_name.values() for delay in some]
            found[phase] = _parts(every) | {name: _parts(some) for name, some in by_name.items()}
        return found


class Crew(Honest):
    """Two members of a work group."""

    def open(self) -> Peer:
        peer = super().open()
        self.done: Counter[int] = Counter()
        self.raised: list[str] = []
        self._lock = threading.Lock()
        for number in range(2):
            self.run(self._work, number, peer.subscribe("work.**", group=GROUP, order="none"))
        return peer

    def _work(self, _: int, events: Subscription) -> None:
        while not self.stopping.is_set():
            try:
                event = events.get(timeout=0.2)
                if event is not None:
                    with self._lock:
                        self.done[event.data[0]] += 1
                    events.ack(event)
            except Exception as error:
                if not self.stopping.is_set():
                    self.raised.append(repr(error)[:300])
                    time.sleep(0.01)

    def progress(self) -> dict[str, int]:
        return {"work": len(self.done)}

    def tally(self) -> dict[str, Any]:
        with self._lock:
            again = sum(count - 1 for count in self.done.values())
            done = len(self.done)
        row: dict[str, Any] = {
            "delivered": done,
            "next": done,
            "twice": again,
            "out_of_order": 0,
            "foreign": 0,
        }
        row |= {"raised": self.raised[:5], "raises": len(self.raised), "reported": 0}
        return {"work": row}


class Recording(Honest):
    """Records what the shop publishes."""

    def open(self) -> Peer:
        record = Record(tuple(f"{name}.**" for name in READ), fsync="interval:50ms")
        return self.make(
            "recorder", connect=self.order["connect"], record=record, data_dir=self.folder
        )

    def progress(self) -> dict[str, int]:
        rows = self.peer.stats()["recorder"]["streams"]
        names = {f"shop/{name}.**": name for name in READ}
        return {names[r["stream"]]: r["events"] for r in rows if r["stream"] in names}


class Late(Honest):
    """Peers that come while the attacker is there: each must be served as if it were not."""

    def open(self) -> Peer:
        self._shop = self.order["connect"]
        return self.make("late")

    def _peer(self, **options: Any) -> Peer:
        self.peer.close(timeout=0.5)
        self.peer = self.make("late", connect=self._shop, **options)
        return self.peer

    def subscriber(self, wait_s: float) -> str:
        """Why a new subscriber was not fed; empty if it was."""
        events = self._peer().subscribe("vol.**")
        came = self._take(events, "vol", LATE_EVENTS, wait_s)
        if len(came) < LATE_EVENTS:
            return f"{len(came)} of {LATE_EVENTS} events in {wait_s:g} s"
        return "" if came == list(range(came[0], came[0] + LATE_EVENTS)) else "not in order"

    def worker(self, wait_s: float, count: int) -> str:
        """Why a new worker did not get all the work; empty if it did."""
        events = self._peer().subscribe("jobs.**", group=LATE_GROUP, order="none", prefetch=5000)
        came = Counter(self._take(events, "jobs", count, wait_s, ack=True))
        missing, twice = count - len(came), sum(came.values()) - len(came)
        return f"{missing} of {count} jobs missing, {twice} twice" if missing or twice else ""

    def holder(self, wait_s: float) -> str:
        """Why a new subscription that holds the log was not fed; empty if it was."""
        with tempfile.TemporaryDirectory() as folder:
            peer = self._peer(data_dir=folder)
            events = peer.subscribe("log.**", start="committed", name="hold", hold=True)
            came = self._take(events, "log", LATE_EVENTS, wait_s)
            self.peer.close(timeout=0.5)
            self.peer = self.make("late")
        return "" if len(came) == LATE_EVENTS else f"{len(came)} of {LATE_EVENTS} in {wait_s:g} s"

    def read(self, wait_s: float) -> str:
        """Why the log could not be read; empty if it could."""
        keys = self.order.get("keys")
        security = None if keys is None else Security(key_dir=str(Path(keys) / "late"))
        try:
            with ReplayClient(self._shop, timeout=wait_s, security=security) as client:
                (log,) = client.logs("log.**")
                epoch, first, stop = log.epochs[-1]
                runs = list(client.read(log.stream, epoch, first, stop))
            found = sum(run.hi - run.lo for run in runs if isinstance(run, Run))
            return "" if found == stop - first else f"{found} of {stop - first} events"
        except Exception as error:
            return repr(error)[:300]

    def stats(self, wait_s: float) -> str:
        """Why statistics were not told; empty if they were."""
        try:
            peer = self._peer()
            peer.wait_for_peers(1, timeout=wait_s)
            answers = peer.ask("stats", timeout=wait_s)
            good = any(isinstance(a, dict) and a.get("peer") == "shop" for a in answers.values())
            return "" if good else f"answered: {str(answers)[:200]}"
        except Exception as error:
            return repr(error)[:300]

    def _take(
        self, events: Subscription, name: str, count: int, wait_s: float, ack: bool = False
    ) -> list[int]:
        came: list[int] = []
        deadline = time.monotonic() + wait_s
        while len(came) < count and (left := deadline - time.monotonic()) > 0:
            event = events.get(timeout=min(left, 1.0))
            if event is not None and event.position.stream == f"shop/{name}.**":
                came.append(event.data[0])
                if ack:
                    events.ack(event)
        return came


def _parts(delays: list[int]) -> dict[str, Any]:
    """Percentiles, in milliseconds."""
    some = sorted(delays) or [0]
    at = {f"p{n}": some[min(len(some) - 1, len(some) * n // 100)] / 1e6 for n in (50, 99)}
    return {"count": len(delays), **at, "max": some[-1] / 1e6}


ROLES: dict[str, type[Honest]] = {
    "shop": Shop,
    "reader": Reader,
    "crew": Crew,
    "recorder": Recording,
    "late": Late,
}


def main() -> None:
    order = json.loads(sys.argv[1])
    os.environ["MESHMSG_DISCOVERY"] = "none"
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))
    if order["first"]:
        come_first()
    honest = ROLES[order["role"]](order)
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            reply = {"value": getattr(honest, asked.pop("do"))(**asked)}
        except Exception:
            reply = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    honest.close()
    os._exit(0)  # whatever an attack has left behind


if __name__ == "__main__":
    main()
