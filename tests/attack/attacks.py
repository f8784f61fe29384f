"""The attacks by name; run as a program, this file is the attacker.

    python -m tests.attack.attacks '{"attack": "slots", ...}'

It prints a line when its blow is dealt, stays as long as its input is open, and prints how much it
sent when it leaves.
"""

from __future__ import annotations

import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from meshmsg._wire import control as c
from tests.attack import by_dialled, by_diallers, heaviest, neutral
from tests.attack.hostile import Attacker
from tests.attack.shape import come_second

#: Behind all honest peers: what is measured is what they do, not what they are left.
NICE = 10


@dataclass(frozen=True)
class Attack:
    """One attack, and the scene that it needs."""

    name: str
    run: Callable[[Attacker], Iterator[None]]
    keys: bool = False
    """Whether peers have keys and an allow list, on which the attacker stands."""
    rights: dict[str, Any] = field(default_factory=dict)
    """What the allow list gives the attacker."""
    share: float = 0.0
    """Its part of the messages of a run; else it sends what it takes."""
    jobs: int = 3000
    """Work that waits for a group without members."""
    big: int = 0
    """Frames of 900,000 bytes that can be asked for."""
    idle: bool = False
    """Whether the shop is silent for longer than a repair may take, with the attacker there."""

    @property
    def what(self) -> str:
        return (self.run.__doc__ or "").strip().partition("\n")[0]


NOTHING = {"publish": (), "subscribe": (), "stats": False}
TOPICS = ("vol.**", "log.**", "mc.**")
READS = {"publish": (), "subscribe": ("**",), "stats": False}
RECORDS = {"publish": TOPICS, "subscribe": TOPICS, "stats": False}

ATTACKS = {
    attack.name: attack
    for attack in (
        Attack("mutate-dialler", by_diallers.mutate_dialler, share=0.35),
        Attack("mutate-dialled", by_dialled.mutate_dialled, share=0.25),
        Attack("mutate-frames", by_dialled.mutate_frames, share=0.1),
        Attack("mutate-packets", by_dialled.mutate_packets, share=0.1),
        Attack(
            "mutate-dialler-listed", by_diallers.mutate_dialler, keys=True, rights=READS, share=0.1
        ),
        Attack(
            "mutate-dialled-listed", by_dialled.mutate_dialled, keys=True, rights=RECORDS, share=0.1
        ),
        Attack("welcome-buffer", by_dialled.welcome_buffer),
        Attack("welcome-buffer-listed", by_dialled.welcome_buffer, keys=True, rights=RECORDS),
        Attack("false-tail", by_dialled.false_tail, idle=True),
        Attack("false-tail-listed", by_dialled.false_tail, keys=True, rights=RECORDS, idle=True),
        Attack("false-tail-of-its-own", by_dialled.false_tail_of_its_own, idle=True),
        Attack("claimed-streams", by_dialled.claimed_streams, idle=True),
        Attack("future-epoch", by_dialled.future_epoch, idle=True),
        Attack(
            "future-epoch-listed", by_dialled.future_epoch, keys=True, rights=RECORDS, idle=True
        ),
        Attack("inverted-gone", by_dialled.inverted_gone, idle=True),
        Attack(
            "inverted-gone-listed", by_dialled.inverted_gone, keys=True, rights=RECORDS, idle=True
        ),
        Attack("multicast-groups", by_dialled.multicast_groups),
        Attack("multicast-beats", by_dialled.multicast_beats, idle=True),
        Attack("covers-listed", by_dialled.covers, keys=True, rights=RECORDS),
        Attack("answer-maps-dialled", by_dialled.answer_maps),
        Attack("welcome-names", by_dialled.welcome_names),
        Attack("liar-dialled", by_dialled.liar_dialled, idle=True),
        Attack(
            "liar-dialled-listed", by_dialled.liar_dialled, keys=True, rights=RECORDS, idle=True
        ),
        Attack("log-lines-dialled", by_dialled.log_lines),
        Attack("multipart", by_diallers.multipart),
        Attack("multipart-data", by_diallers.multipart_data),
        Attack("multipart-listed", by_diallers.multipart_listed, keys=True, rights=NOTHING),
        Attack("trie", by_diallers.trie),
        Attack("cards", by_diallers.cards),
        Attack("cards-listed", by_diallers.cards, keys=True, rights=NOTHING),
        Attack("starts", by_diallers.starts),
        Attack("nacks-unread", by_diallers.nacks, big=40),
        Attack("nacks-unread-listed", by_diallers.nacks, big=40, keys=True, rights=READS),
        Attack("answer-maps", by_diallers.answer_any),
        Attack("names", by_diallers.names),
        Attack("names-listed", by_diallers.names, keys=True, rights=NOTHING),
        Attack("held", by_diallers.held, jobs=100_000),
        Attack("held-listed", by_diallers.held, jobs=100_000, keys=True, rights=READS),
        Attack("claims", by_diallers.claims),
        Attack("claims-listed", by_diallers.claims, keys=True, rights=READS),
        Attack("group-names", by_diallers.group_names),
        Attack("group-names-listed", by_diallers.group_names, keys=True, rights=READS),
        Attack("stale-acks", by_diallers.stale_acks),
        Attack("liar-dialler", by_diallers.liar_dialler, idle=True),
        Attack("liar-dialler-listed", by_diallers.liar_dialler, keys=True, rights=READS, idle=True),
        Attack("slots", by_diallers.slots),
        Attack("slots-listed", by_diallers.slots, keys=True, rights=NOTHING),
        Attack("tokens", by_diallers.tokens),
        Attack("reads", by_diallers.reads),
        Attack("reads-listed", by_diallers.reads, keys=True, rights=READS),
        Attack("holds", by_diallers.holds),
        Attack("holds-listed", by_diallers.holds, keys=True, rights=READS),
        Attack("asks", by_diallers.asks),
        Attack("crowd", by_diallers.crowd),
        Attack("log-flood", by_diallers.log_flood),
        Attack("heaviest-dialler", heaviest.by_dialler),
        Attack("heaviest-dialler-listed", heaviest.by_dialler, keys=True, rights=READS),
        Attack("heaviest-dialled", heaviest.by_dialled),
        Attack("heaviest-dialled-listed", heaviest.by_dialled, keys=True, rights=RECORDS),
    )
}

#: What an attack is compared with.
NEUTRAL = Attack("neutral", neutral.neutral)


def _tell(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main() -> None:
    order = json.loads(sys.argv[1])
    # What it says makes no sense where it likes.
    c.check_range = c.check_ranges = lambda *given: None  # type: ignore[assignment]
    os.nice(NICE)
    if order["first"]:
        come_second()
    attacker = Attacker(order)
    error, told, cut = "", False, False
    try:
        attack = NEUTRAL if order["steps"] else ATTACKS[order["attack"]]
        for _ in attack.run(attacker):
            attacker.shape.look()
            if not told:
                _tell(placed=True)
                told, cut = True, attacker.is_time_up()
            if select.select([sys.stdin], [], [], 0)[0]:
                break
    except Exception:
        error = traceback.format_exc()
    if not told:
        _tell(placed=True)
    sys.stdin.read()
    shape = {"began": attacker.shape.began, "steps": attacker.shape.steps}
    _tell(sent=attacker.sent, blocked=attacker.blocked, error=error, shape=shape, cut=cut)
    attacker.close()
    os._exit(0)


if __name__ == "__main__":
    main()
