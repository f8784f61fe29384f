"""Subscriptions that nobody confirmed are asked for again, ever more rarely."""

from __future__ import annotations

from meshmsg.recovery.stream.unconfirmed import FIRST_S, LAST_S, Ask, Unconfirmed

LINK, OTHER = "link", "other"


def test_what_is_not_confirmed_is_asked_for_again_after_growing_pauses() -> None:
    waits: Unconfirmed[str] = Unconfirmed()
    now, asked = 0.0, []
    waits.asked(LINK, 1, ["s"], now=now)
    while len(asked) < 8:
        now += 0.5
        for ask in waits.due(now=now, most=9):
            assert ask == Ask(LINK, 1, "s")
            asked.append(now)
            waits.asked(*ask[:2], [ask.stream], now=now)
    pauses = [b - a for a, b in zip([0.0, *asked], asked, strict=False)]
    assert pauses[0] == FIRST_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LAST_S


def test_what_is_confirmed_is_not_asked_for_again() -> None:
    waits: Unconfirmed[str] = Unconfirmed()
    waits.asked(LINK, 1, ["s", "t"], now=0.0)
    waits.settled(LINK, 1, "s", now=0.0)
    waits.settled(OTHER, 1, "t", now=0.0)
    assert [ask.stream for ask in waits.due(now=100.0, most=9)] == ["t"]


def test_who_was_turned_away_after_all_asks_again() -> None:
    waits: Unconfirmed[str] = Unconfirmed()
    waits.waits(LINK, 1, ["s"], now=0.0)
    assert waits.due(now=FIRST_S / 2, most=9) == []
    assert len(waits.due(now=FIRST_S, most=9)) == 1


def test_links_and_subscriptions_that_are_gone_are_forgotten() -> None:
    waits: Unconfirmed[str] = Unconfirmed()
    waits.asked(LINK, 1, ["s"], now=0.0)
    waits.asked(OTHER, 2, ["s"], now=0.0)
    waits.asked(OTHER, 3, ["s"], now=0.0)
    waits.forget(link=LINK)
    waits.forget(sub=2)
    assert [ask.sub for ask in waits.due(now=100.0, most=9)] == [3]
    assert len(waits) == 1


def test_what_is_due_is_told_some_at_a_time() -> None:
    waits: Unconfirmed[str] = Unconfirmed()
    streams = [f"s{n}" for n in range(10)]
    waits.asked(LINK, 1, streams, now=0.0)
    told: list[str] = []
    while waits.next_due <= FIRST_S:
        some = waits.due(now=FIRST_S, most=4)
        assert len(some) <= 4
        told += [ask.stream for ask in some]
    assert told == streams
    assert waits.next_due == 2 * FIRST_S, "who is not asked meanwhile is told of again"


def test_nothing_is_asked_again_while_answers_come() -> None:
    waits: Unconfirmed[str] = Unconfirmed()
    streams = [f"s{n}" for n in range(20)]
    waits.asked(LINK, 1, streams, now=0.0)
    waits.asked(LINK, 2, ["s"], now=0.0)
    asked = []
    for n, stream in enumerate(streams[:10]):
        now = n * FIRST_S / 2
        asked += waits.due(now=now, most=99)
        waits.settled(LINK, 1, stream, now=now)
    assert {ask.sub for ask in asked} == {2}, "an answer counts for its own subscription"
    last = 9 * FIRST_S / 2
    assert [ask for ask in waits.due(now=last + FIRST_S - 0.1, most=99) if ask.sub == 1] == []
    again = [ask.stream for ask in waits.due(now=last + FIRST_S, most=99) if ask.sub == 1]
    assert sorted(again) == sorted(streams[10:]), "answers have ended, these are missing"


def test_answers_for_ever_to_others_put_nothing_off_for_ever() -> None:
    waits: Unconfirmed[str] = Unconfirmed()
    waits.asked(LINK, 1, ["lost"], now=0.0)
    now, asked = 0.0, []
    while now < LAST_S + 2 and not asked:
        waits.asked(LINK, 1, [f"other {now}"], now=now)
        waits.settled(LINK, 1, f"other {now}", now=now)
        now += FIRST_S / 2
        asked = waits.due(now=now, most=99)
    assert [ask.stream for ask in asked] == ["lost"]
    assert now <= LAST_S + FIRST_S
