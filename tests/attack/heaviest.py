"""The heaviest valid messages of each kind, again and again: what one costs at its bound."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from msgspec.structs import replace

from meshmsg._model.message_fields import ACK_RANGES_MAX, ENTRIES_MAX, PIECES_MAX
from meshmsg._wire import control as c
from tests.attack.by_dialled import SUBSCRIBERS, info, own, placed, serving
from tests.attack.by_diallers import LOG, WORK, join, staying
from tests.attack.hostile import Attacker, Dialled, encoded

#: As long as an attacker goes on; and messages in a second, as many as any peer could handle.
SECONDS = 4.0
MANY = range(ENTRIES_MAX)
REASONS = {f"reason {n}": n for n in range(16)}


def by_dialler(a: Attacker) -> Iterator[None]:
    """The heaviest requests: each kind that says something of many streams, or of much work."""
    diallers = [a.dial(target) for target in a.targets]
    name = diallers[0].name
    epoch = a.scene.streams[WORK]
    acks = [(n, n + 1, 1) for n in range(0, 2 * ACK_RANGES_MAX, 2)]
    pieces = range(PIECES_MAX // ACK_RANGES_MAX)
    requests: list[c.Message] = [
        c.Status(1, [c.Figures(f"{name}/{n}", 5, 0, 9, 9, 9, 0, REASONS) for n in MANY]),
        c.Subscribe(1, ["**"], [c.Start(f"shop/{n}", "live") for n in MANY]),
        c.Commit(1, [c.Place(f"shop/{n}", 5, 1) for n in MANY]),
        c.Settle(1, [c.Settlement(WORK, epoch, acks) for _ in pieces]),
        join(1, "crew", WORK, claims=[c.Claimed(WORK, epoch, acks) for _ in pieces]),
        join(2, "crew", WORK, claims=[c.Claimed(WORK, epoch, acks) for _ in pieces], more=True),
        c.Nack(1, LOG, a.scene.streams[LOG], [(n, n + 1) for n in range(0, 512, 2)], 1),
        c.LogsPlease(1, "default", ["**"]),
        c.Ask(1, "stats"),
        c.Ask(2, "ledger"),
        c.Ping(1),
    ]
    cards = [
        c.Here("m", 0, 0, streams=[f"{name}/{n:04}" for n in range(2500)]),
        c.Here(
            "m", 0, 0, known=[c.Contact(f"n{n}", n + 9, [f"tcp://[::1]:{n + 1}"]) for n in MANY]
        ),
    ]
    data = [encoded(one) for one in requests]
    stop = time.monotonic() + SECONDS
    for turn in itertools.count():
        dialler = diallers[turn % len(diallers)]
        card = {"peer": dialler.name, "instance": dialler.instance, "serial": turn}
        dialler.say(replace(cards[turn % 2], **card))
        for one in data:
            dialler.say(one)
            dialler.drain()
        if time.monotonic() >= stop or a.is_time_up():
            break
    yield from staying(*diallers)


def by_dialled(a: Attacker) -> Iterator[None]:
    """The heaviest answers: thousands of streams that are wanted, and all that is said of them."""
    dialled = Dialled(a, SUBSCRIBERS, streams=own())
    placed(dialled)
    names = [f"{dialled.name}/s{n}" for n in range(20 * ENTRIES_MAX)]
    stop = time.monotonic() + SECONDS
    for turn in itertools.count():
        page = turn % 20
        some = names[page * ENTRIES_MAX : (page + 1) * ENTRIES_MAX]
        dialled.streams = [info(name, f"vol.{n}", 5) for n, name in enumerate(some)]
        tails = [c.Tail(name, 5, 0, turn) for name in some]
        for who, peer in list(dialled.names.items()):
            welcome = dialled.welcome(c.Hello(peer, 1, "default"))
            dialled.say(who, replace(welcome, page=page, more=page < 19))
            dialled.say(who, c.Pong(1, dialled.instance, tails, tails))
            for sub in dialled.subs.get(who, []):
                dialled.say(who, c.Unsubscribed(sub, some, "no"))
                dialled.say(who, c.Subscribed(sub, some[turn % ENTRIES_MAX], 5, 0, 0, 9, 0))
                dialled.say(who, c.StatusPlease(sub, turn))
        dialled.serve(0.001)
        if time.monotonic() >= stop or a.is_time_up():
            break
    yield from serving(dialled)
