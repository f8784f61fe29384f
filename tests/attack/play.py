"""One attack from beginning to end: quiet, attacked, latecomers, quiet again; and the result."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.attack.attacks import Attack
from tests.attack.shape import Step
from tests.attack.world import Dead, Machine, Process, Sampler, World, wait_for, world

MIB = 1 << 20
#: What an honest peer may take more than before, at its worst moment.
GROWTH_BYTES_MAX = 256 * MIB
FILES_GROWTH_MAX = 400
LINES_MAX = 300
#: A gap of a volatile stream is declared lost after 5 s.
IDLE_S = 8.0
#: The stream has stood still when nothing has come for so long.
STILL_S = 10.0
#: What the attacker may take longer than it is given: it looks at the time between messages.
MARGIN_S = 30.0
READ = ("vol", "log", "mc")


@dataclass(frozen=True)
class Options:
    """How long, how fast, how strict."""

    messages: int = 1_000_000
    seed: int = 1
    rate: float = 5000.0
    """Messages that the attacker sends in a second, at most."""
    events: float = 1000.0
    """Honest events in a second."""
    quiet_s: float = 2.0
    attack_s: float = 2.0
    attack_s_max: float = 240.0
    """How long an attacker may take to send what it is to send."""
    play_s_max: float = 600.0
    """How long one play of an attack may take in all: then its processes are ended."""
    neutral_s_max: float = 8.0
    """Of a longer attack, so much is played again as a neutral load."""
    late_s: float = 20.0
    late: tuple[str, ...] = ("subscriber", "stats", "read", "holder", "worker")
    timing: bool = True
    """Whether delay and stalls are judged."""
    p99_ratio_max: float = 2.0
    p99_floor_ms: float = 1.0
    """A delay that is fine, whatever it is without the attack: as long as a thread that is woken
    may have to wait for another that has its core, or for the interpreter's lock."""
    stall_s_max: float = 1.0


@dataclass
class Result:
    """What became of one attack; it failed if there are problems."""

    attack: str
    what: str
    keys: bool
    sent: int = 0
    seconds: float = 0.0
    others: float = 0.0
    """Which part of the machine other programs used meanwhile."""
    blocked: str = ""
    honest: dict[str, dict[str, Any]] = field(default_factory=dict)
    delays: dict[str, dict[str, Any]] = field(default_factory=dict)
    stalls: dict[str, float] = field(default_factory=dict)
    rss: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)
    exceptions: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    """Problems of time alone, which a busy machine makes as well."""
    excess: float = 0.0
    """The largest time that is judged, as a multiple of what it may be."""
    tries: list[float] = field(default_factory=list)
    """`excess` of each play, where one was not enough to judge by."""

    def p99(self, phase: str) -> float:
        """The 99th percentile of delay, in milliseconds."""
        return float(self.delays.get(phase, {}).get("p99", 0.0))

    @property
    def ratio(self) -> float:
        """Of the 99th percentile of delay under the attack and under a neutral load."""
        return self.p99("attacked") / max(self.p99("neutral"), 0.001)

    @property
    def is_good(self) -> bool:
        return not self.problems and not self.slow


def play(attack: Attack, options: Options, messages: int, seed: int) -> Result:
    """Play one attack; it never raises."""
    result = Result(attack.name, attack.what, attack.keys)
    began = time.monotonic()
    try:
        with world(attack, seed, first=options.timing) as scene, bounded(scene, options, result):
            machine = Machine(scene)
            _Play(scene, attack, options, result).run(messages, seed)
            result.others = machine.others()
    except Dead as error:
        result.problems.append(str(error).strip().rpartition("\n")[2])
        result.exceptions.append(str(error))
    result.seconds = time.monotonic() - began
    return result


class Killable(Protocol):
    """Processes that can be ended from another thread."""

    def kill(self) -> None: ...


@contextlib.contextmanager
def bounded(scene: Killable, options: Options, result: Result) -> Iterator[None]:
    """End a play that does not come to its end, and say so."""

    def end() -> None:
        result.problems.append(f"it did not end in {options.play_s_max:g} s")
        scene.kill()

    timer = threading.Timer(options.play_s_max, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Play:
    def __init__(self, scene: World, attack: Attack, options: Options, result: Result) -> None:
        self._scene = scene
        self._attack = attack
        self._options = options
        self._result = result
        self._shop = scene.honest["shop"]
        self._phases: dict[str, tuple[int, int]] = {}
        self._sampler = Sampler(scene.honest)

    def run(self, messages: int, seed: int) -> None:
        try:
            self._run(messages, seed)
        finally:
            self._sampler.close()
            self._judge_machine()

    def _run(self, messages: int, seed: int) -> None:
        options, shop = self._options, self._shop
        counters = {role: p.do("health")["counters"] for role, p in self._scene.honest.items()}
        shop.do("start", rate=options.events)
        wait_for(0.5)
        self._phase("quiet", options.quiet_s)
        self._sampler.before = self._sampler.now()
        shape = self._attack_now(messages, seed)
        if shape is not None and options.timing:
            self._neutral(shape, seed)
        self._phase("after", options.quiet_s)
        published = shop.do("finish")
        self._drain(published)
        self._collect(published, counters)

    def _phase(self, name: str, seconds: float, until: Any = lambda: False) -> None:
        began = time.monotonic_ns()
        wait_for(seconds, until)
        self._phases[name] = (began, time.monotonic_ns())

    def _begin(self, messages: int, seed: int, steps: list[Step]) -> Process:
        options = self._options
        return self._scene.begin_attack(
            messages=messages,
            rate=options.rate,
            seed=seed,
            seconds=options.attack_s_max,
            shape_s=options.neutral_s_max,
            steps=steps,
        )

    def _attack_now(self, messages: int, seed: int) -> dict[str, Any] | None:
        """Return the shape of what the attacker sent."""
        options = self._options
        began = time.monotonic_ns()
        attacker = self._begin(messages, seed, [])
        limit_s = options.attack_s_max + MARGIN_S
        wait_for(limit_s, lambda: attacker.has_said() or self._sampler.is_too_much())
        wait_for(options.attack_s, self._sampler.is_too_much)
        self._phases["attacked"] = (began, time.monotonic_ns())
        if self._sampler.is_too_much():
            self._result.problems.append("memory: the attack was ended by the harness")
            attacker.end()
            return None
        if not attacker.has_said():
            self._result.problems.append(f"the attacker had not done its part after {limit_s:g} s")
            attacker.end()
            return None
        if self._attack.idle:
            self._shop.do("pause")
            wait_for(IDLE_S)
            self._shop.do("go_on")
            wait_for(1.0)
        self._latecomers()
        return self._leave(attacker)

    def _neutral(self, shape: dict[str, Any], seed: int) -> None:
        """The same load as that of the attack, by harmless messages."""
        stop = self._phases["attacked"][1] / 1e9 - shape["began"]
        began = time.monotonic_ns()
        process = self._begin(0, seed, [step for step in shape["steps"] if step[0] < stop])
        wait_for(self._options.neutral_s_max + MARGIN_S, process.has_said)
        self._phases["neutral"] = (began, time.monotonic_ns())
        process.leave()
        while "sent" not in (said := process.line(20.0)):
            pass
        if said["error"]:
            raise Dead("the neutral load: " + said["error"])
        process.end()

    def _latecomers(self) -> None:
        """With the attacker still there."""
        for what in self._options.late:
            if self._sampler.is_too_much():
                self._result.problems.append("memory: the attack was ended by the harness")
                return
            more = {"count": self._attack.jobs} if what == "worker" else {}
            try:
                wait_s = self._options.late_s
                problem = self._scene.late.do(what, 4 * wait_s, wait_s=wait_s, **more)
            except Dead as error:  # what it was asked is answered some time: nothing more is
                problem = str(error).strip().rpartition("\n")[2]
                self._note_late(what, problem)
                return
            if problem:
                self._note_late(what, problem)

    def _note_late(self, what: str, problem: str) -> None:
        self._result.late[what] = problem
        self._result.problems.append(f"late {what}: {problem}")

    def _leave(self, attacker: Process) -> dict[str, Any] | None:
        result, shape = self._result, None
        attacker.leave()
        try:
            said = attacker.line(20.0)
            if "placed" in said:
                said = attacker.line(20.0)
            result.sent, result.blocked, shape = said["sent"], said["blocked"], said["shape"]
            if said["cut"]:
                result.problems.append(f"after {result.sent} messages the attacker's time was up")
            if said["error"]:
                result.exceptions.append("attacker: " + said["error"])
                last = said["error"].strip().rpartition("\n")[2]
                result.problems.append(f"the attacker failed: {last}")
        except Dead as error:
            result.problems.append(str(error))
        attacker.end()
        return shape

    def _drain(self, published: dict[str, int]) -> None:
        """Wait until all has come, or nothing comes any more."""
        wanted = {"reader": READ, "recorder": READ, "crew": ("work",)}
        last: Any = None
        since = time.monotonic()
        while time.monotonic() - since < STILL_S:
            now = {role: self._progress(role) for role in wanted}
            if all(now[r].get(n, 0) >= published[n] for r, names in wanted.items() for n in names):
                return
            if now != last:
                last, since = now, time.monotonic()
            time.sleep(0.1)

    def _progress(self, role: str) -> dict[str, int]:
        found: dict[str, int] = self._scene.honest[role].do("progress")
        return found

    # --- what is found ---

    def _collect(self, published: dict[str, int], before: dict[str, Any]) -> None:
        result, honest = self._result, self._scene.honest
        tallies = honest["reader"].do("tally") | honest["crew"].do("tally")
        for name, tally in tallies.items():
            tally["published"] = published[name]
            tally["lost"] = published[name] - tally["delivered"]
            result.honest[name] = tally
        result.delays = honest["reader"].do("delays", phases=self._phases)
        result.stalls = self._shop.do("stalls", phases=self._phases)
        for role, process in honest.items():
            self._judge_health(role, process.do("health"), before[role], published)
        self._judge_events()
        if self._options.timing:
            self._judge_time()

    def _judge_health(
        self, role: str, health: dict[str, Any], before: dict[str, int], published: dict[str, int]
    ) -> None:
        result, problems = self._result, self._result.problems
        risen = {
            name: count - before.get(name, 0)
            for name, count in health["counters"].items()
            if count > before.get(name, 0)
        }
        result.counters[role] = risen
        result.lines[role] = health["lines"]
        if risen.get("io_errors"):
            problems.append(f"{role}: io_errors {risen['io_errors']}")
        problems += [f"{role}: thread {name} is dead" for name in health["dead"]]
        if health["exceptions"]:
            problems.append(f"{role}: {sum(health['exceptions'].values())} exceptions logged")
            for text, count in health["exceptions"].items():
                result.exceptions.append(f"{role}, {count} times: {text.strip()}")
        if health["problem"]:
            problems.append(f"{role}: {health['problem'][:100]}")
        if health["lines"] > LINES_MAX:
            some = " / ".join(health["samples"][:3])
            problems.append(f"{role}: {health['lines']} lines logged: {some[:300]}")
        if health["forged"]:
            problems.append(f"{role}: {health['forged']} log lines forged")
        if role == "recorder":
            self._judge_records(health["recorded"], published)

    def _judge_records(self, recorded: dict[str, Any], published: dict[str, int]) -> None:
        for name in READ:
            row = recorded.get(f"shop/{name}.**", {"events": 0, "lost": 0})
            if row["events"] != published[name] or row["lost"]:
                self._result.problems.append(
                    f"recorder: {row['events']} of {published[name]} of {name}, {row['lost']} lost"
                )

    def _judge_events(self) -> None:
        problems = self._result.problems
        for name, row in self._result.honest.items():
            if row["lost"] > 0:
                problems.append(f"{name}: {row['lost']} of {row['published']} lost")
            if row["lost"] != row["reported"] and name != "work":
                problems.append(f"{name}: {row['reported']} reported lost, {row['lost']} were")
            for word in ("twice", "out_of_order"):
                if row[word]:
                    problems.append(f"{name}: {row[word]} {word.replace('_', ' ')}")
            if row["raises"]:
                problems.append(f"{name}: get() raised {row['raises']} times: {row['raised'][0]}")

    def _judge_machine(self) -> None:
        result, sampler = self._result, self._sampler
        after = sampler.now()
        for role, (rss, files) in sampler.before.items():
            peak, files_peak = sampler.rss_peak[role], sampler.files_peak[role]
            result.rss[role] = (rss, peak, after[role][0])
            result.files[role] = (files, files_peak)
            if peak - rss > GROWTH_BYTES_MAX:
                result.problems.append(f"{role}: memory {rss // MIB} to {peak // MIB} MiB")
            if files_peak - files > FILES_GROWTH_MAX:
                result.problems.append(f"{role}: files {files} to {files_peak}")

    def _judge_time(self) -> None:
        result, options = self._result, self._options
        for name, other in (("attacked", "neutral"), ("after", "quiet")):
            p99, limit = result.p99(name), options.p99_ratio_max * result.p99(other)
            text = f"p99 of delay {p99:.1f} ms {name}, {limit / 2:.1f} ms {other}"
            self._hold(p99, max(limit, options.p99_floor_ms), text)
        stall, quiet = result.stalls.get("attacked", 0.0), result.stalls.get("quiet", 0.0)
        limit = max(options.stall_s_max, 5 * quiet)
        self._hold(stall, limit, f"publish stood still for {stall:.1f} s")

    def _hold(self, found: float, limit: float, text: str) -> None:
        """Hold a time against the most that it may be."""
        self._result.excess = max(self._result.excess, found / limit)
        if found > limit:
            self._result.slow.append(text)
