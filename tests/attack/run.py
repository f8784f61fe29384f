"""Play a hostile dialler and a hostile dialled peer at live peers, and see what honest ones get.

    python -m tests.attack.run --messages 1000000 --seed 1
    python -m tests.attack.run --attack slots --attack claims

Each attack has processes of its own: a publisher (volatile, durable and multicast streams, work for
groups), a reader, two workers, a recorder, latecomers, and the attacker, which is nice and keeps to
a pace, so that what is measured is what the others do and not what it leaves them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable
from typing import Any

from tests.attack.attacks import ATTACKS, Attack
from tests.attack.play import MIB, Options, Result, play

#: Changed messages in one world; then comes a new one, with another seed.
ROUND_MESSAGES = 100_000
#: With so much of the machine in use by others, delay says little.
OTHERS_MAX = 0.05
#: How often an attack is played that is only slow, on a quiet machine and on another one: then the
#: median of its plays is judged, whatever the best of them was.
TRIES = (3, 5)
COLUMNS = (
    ("attack", 24), ("sent", 8), ("publ", 6), ("deliv", 6), ("lost", 5), ("twice", 5), ("order", 5),
    ("p99 ms quiet/neutral/attacked/after", 35), ("ratio", 5), ("worst ms", 11), ("stall s", 7),
    ("RSS MiB before/peak/after", 27),
)  # fmt: skip


def rounds(attack: Attack, options: Options, shares: float) -> Iterable[tuple[int, int]]:
    """Messages and seed of each world; `shares` is what all attacks of the run have together."""
    if not attack.share:
        yield 0, options.seed
        return
    left, seed = int(options.messages * attack.share / shares), options.seed
    while left > 0:
        yield min(left, ROUND_MESSAGES), seed
        left -= ROUND_MESSAGES
        seed += 1


def row(result: Result) -> str:
    honest = result.honest.values()
    total = {
        word: sum(one[word] for one in honest)
        for word in ("published", "delivered", "lost", "twice", "out_of_order")
    }
    p99 = [f"{result.p99(name):.1f}" for name in ("quiet", "neutral", "attacked", "after")]
    worst = [result.delays.get(name, {}).get("max", 0.0) for name in ("neutral", "attacked")]
    role = max(result.rss, key=lambda name: result.rss[name][1] - result.rss[name][0], default="")
    rss = "/".join(str(n // MIB) for n in result.rss.get(role, ()))
    texts = (
        result.attack,
        result.sent,
        *total.values(),
        "/".join(p99),
        f"{result.ratio:.1f}",
        "/".join(f"{one:.0f}" for one in worst),
        f"{result.stalls.get('attacked', 0.0):.2f}",
        f"{role} {rss}",
    )
    cells = [f"{text!s:<{width}}" for text, (_, width) in zip(texts, COLUMNS, strict=True)]
    return " ".join(cells) + ("  ok" if result.is_good else "  FAILED")


def details(result: Result) -> list[str]:
    """What stands below a row."""
    found = [f"FAILED {text}" for text in (*result.problems, *result.slow)]
    if len(result.tries) > 1:
        texts = ", ".join(f"{excess:.2f}" for excess in result.tries)
        found.append(f"judged by the median of {len(result.tries)} plays; of its limit: {texts}")
    if result.slow and result.others > OTHERS_MAX:
        found.append(f"other programs used {result.others:.0%} of the machine")
    if result.blocked:
        found.append(f"blocked: {result.blocked}")
    for role, counters in result.counters.items():
        if counters:
            risen = ", ".join(f"{name} {count}" for name, count in sorted(counters.items()))
            found.append(f"{role} counted: {risen}")
    for text in result.exceptions:
        said, *trace = text.splitlines()
        found += [said, *("    " + line for line in trace[-5:])]
    return found


def played(attack: Attack, options: Options, shares: float) -> Iterable[Result]:
    """All rounds of an attack; of one that is only slow, the median of several plays counts."""
    parts = list(rounds(attack, options, shares))
    if len(parts) >= TRIES[0]:  # so many plays there are already
        yield from judged_together([_played_once(attack, options, *part) for part in parts])
        return
    for messages, seed in parts:
        plays: list[Result] = []
        while not plays or is_open(plays):
            plays.append(_played_once(attack, options, messages, seed))
        yield judged(plays)


def _played_once(attack: Attack, options: Options, messages: int, seed: int) -> Result:
    """Play, and say how far it is: several plays may stand behind a row."""
    one = play(attack, options, messages, seed)
    said = f"{one.excess:.2f} of the time allowed, others {one.others:.0%}"
    problems = "".join(f"; {text}" for text in one.problems)
    sys.stderr.write(f"{one.attack}, seed {seed}: {one.seconds:.0f} s, {said}{problems}\n")
    return one


def judged_together(plays: list[Result]) -> list[Result]:
    """Rounds of one attack: that one of them is slow counts if the one in the middle is."""
    tries = [round(one.excess, 2) for one in plays]
    if sorted(plays, key=lambda one: one.excess)[len(plays) // 2].slow:
        return plays
    return [dataclasses.replace(one, slow=[], tries=tries) if one.slow else one for one in plays]


def is_open(plays: list[Result]) -> bool:
    """Return True while another play could say more about an attack that is only slow."""
    if plays[0].is_good or any(one.problems for one in plays):
        return False
    tries = TRIES[max(one.others for one in plays) > OTHERS_MAX]
    slow = sum(bool(one.slow) for one in plays)
    return max(slow, len(plays) - slow) <= tries // 2


def judged(plays: list[Result]) -> Result:
    """The play that counts: one with problems, else the one in the middle by its excess."""
    bad = next((one for one in plays if one.problems), None)
    middle = sorted(plays, key=lambda one: one.excess)[len(plays) // 2]
    return dataclasses.replace(bad or middle, tries=[round(one.excess, 2) for one in plays])


def run(names: Iterable[str], options: Options, *, as_json: bool) -> int:
    out = sys.stdout
    results = []
    attacks = [ATTACKS[name] for name in names]
    shares = sum(attack.share for attack in attacks)
    if not as_json:
        out.write(" ".join(f"{name:<{width}}" for name, width in COLUMNS) + "\n")
    for attack in attacks:
        for result in played(attack, options, shares):
            results.append(result)
            if as_json:
                out.write(json.dumps(dataclasses.asdict(result) | {"good": result.is_good}) + "\n")
            else:
                out.write("\n".join([row(result), *("    " + t for t in details(result))]) + "\n")
            out.flush()
    if not as_json:
        out.write(summary(results))
    return 0 if all(result.is_good for result in results) else 1


def summary(results: list[Result]) -> str:
    bad = [result.attack for result in results if not result.is_good]
    stall = max((max(r.stalls.values(), default=0.0) for r in results), default=0.0)
    events = sum(row["published"] for r in results for row in r.honest.values())
    lines = [
        f"{len(results)} rounds, {sum(r.sent for r in results):,} messages beside {events:,} "
        f"honest events, longest stall of a publisher {stall:.2f} s, {len(bad)} failed"
    ]
    if bad:
        lines.append("failed: " + ", ".join(dict.fromkeys(bad)))
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--attack", action="append", choices=sorted(ATTACKS), help="only this one")
    parser.add_argument("--list", action="store_true", help="name the attacks")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each round")
    parser.add_argument("--messages", type=int, default=Options.messages)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--rate", type=float, default=Options.rate, help="messages in a second")
    parser.add_argument("--quiet-s", type=float, default=Options.quiet_s)
    parser.add_argument("--p99-floor-ms", type=float, default=Options.p99_floor_ms)
    args: Any = parser.parse_args(arguments)
    if args.list:
        for attack in ATTACKS.values():
            sys.stdout.write(f"{attack.name:<24} {'keys' if attack.keys else '':<5}{attack.what}\n")
        return 0
    options = Options(
        messages=args.messages,
        seed=args.seed,
        rate=args.rate,
        quiet_s=args.quiet_s,
        p99_floor_ms=args.p99_floor_ms,
    )
    return run(args.attack or ATTACKS, options, as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
