"""The allow-list: what is read and refused, whose a name is, and which patterns cover which."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter

import pytest

from meshmsg import ConfigError
from meshmsg._access import allow_list as _allow
from meshmsg._access.allow_list import (
    KEY_BYTES,
    Grant,
    Names,
    check_grant_name,
    check_patterns,
    covered,
    covers,
    parse_allow,
    parse_public_key,
)
from meshmsg._access.key_files import format_allow
from meshmsg._model.topics import Pattern


def test_round_trip() -> None:
    keys = [secrets.token_bytes(32) for _ in range(3)]
    grants = [
        Grant("a", keys[0]),
        Grant("b-*", keys[1], ("x.**",), (), False),
        Grant("tür\U0001f40d'\"\\", keys[2], ("\U0001d11e.**", 'q"x'), ("é",)),
    ]
    assert parse_allow(format_allow(grants), "f") == {g.key: g for g in grants}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[peer]]\nname = 'a'", r"peer\[0\]\.key: is not a public key"),
        ("[[peer]]\nname = 'a'\nkey = '00'", r"peer\[0\]\.key: is not a public key"),
        (f"[[peer]]\nkey = '{'ab' * 32}'", r"peer\[0\]\.name"),
        (f"[[peer]]\nname = 'a b'\nkey = '{'ab' * 32}'", r"peer\[0\]\.name"),
        (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\npublish = 'x'", "not a list of patterns"),
        (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\nsubscribe = ['a..b']", "subscribe"),
        (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\nstats = 1", "neither true nor false"),
        (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\nadmin = 1", "is not a key here"),
        (f"[[peer]]\nname = 'a'\nkey = '{'ab' * 32}'\n" * 2, "stands twice"),
        ("peer = 7", r"write \[\[peer\]\]"),
        ("[other]", r"write \[\[peer\]\]"),
        ("[[peer", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_allow(text, "allow.toml")


def test_names() -> None:
    one, two = b"1", b"2"
    assert Names([Grant("desk", one)]).keys_of("desk") == {one}
    assert Names([Grant("desk", one)]).keys_of("desk-1") == set()
    assert Names([Grant("desk-*", one)]).keys_of("desk-1") == {one}
    assert Names([Grant("desk-*", one)]).keys_of("desk") == set()
    assert Names([Grant("*", one)]).keys_of("anything") == {one}
    assert Names([Grant("desk-*", one), Grant("desk-*", two)]).keys_of("desk-1") == {one, two}


def test_a_name_belongs_to_the_entry_that_gives_it_most_exactly() -> None:
    any_key, desks, desk = b"1", b"2", b"3"
    names = Names([Grant("*", any_key), Grant("desk-*", desks), Grant("desk-1", desk)])
    assert names.keys_of("desk-1") == {desk}
    assert names.keys_of("desk-2") == {desks}
    assert names.keys_of("shop") == {any_key}


def test_covering_is_what_trying_all_topics_says() -> None:
    """Against brute force: every topic of up to four levels of three names."""
    topics = [".".join(t) for n in range(1, 5) for t in itertools.product("abc", repeat=n)]
    levels = ("a", "*", "**")
    patterns = [".".join(t) for n in range(1, 4) for t in itertools.product(levels, repeat=n)]
    selects = {p: frozenset(filter(Pattern(p).matches, topics)) for p in patterns}
    for wanted in patterns:
        for granted in itertools.combinations(patterns[::2], 2):
            brute = selects[wanted] <= selects[granted[0]] | selects[granted[1]]
            assert covers(granted, wanted) == brute, (granted, wanted)
    assert not covers((), "a")
    assert covers(("**",), "a.*.**")


def test_patterns_made_to_be_hard_are_answered() -> None:
    hard = ".".join(["**", "a"] * 20)
    assert covers((hard,), hard)
    covers((".".join(["**", "b"] * 20), ".".join(["*", "**"] * 20)), hard)


def test_a_search_has_so_many_steps_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """One such pattern took half a second; a welcome has thousands."""
    steps = Counter[str]()
    step = _allow._step

    def counted(levels: list[str], places: frozenset[int], symbol: str) -> frozenset[int]:
        steps[".".join(levels)] += len(places)
        return step(levels, places, symbol)

    monkeypatch.setattr(_allow, "_step", counted)
    hard = ".".join(["quotes", *(f"**.n{n}" for n in range(30)), "**.a", *"*" * 10])
    assert not covers(("quotes.a.**", "*.n3.**"), hard)
    assert 0 < steps.total() <= _allow.STEPS_MAX
    steps.clear()
    assert covers(("quotes.**",), hard)  # what begins like it needs none
    assert not steps


def test_only_some_patterns_of_a_message_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_allow, "SEARCHES_MAX", 3)
    plain = {f"orders.{n}" for n in range(100)}
    hard = {f"*.eu.{n}" for n in range(100)}
    found = covered(("orders.**", "*.eu.*"), plain | hard)
    assert plain <= found
    assert len(found & hard) == 3


def test_answers_that_are_remembered_are_few() -> None:
    for n in range(2 * _allow.COVERS_MAX):
        covers(("a.*",), f"b{n}.*")
    assert covers.cache_info().currsize <= _allow.COVERS_MAX


def test_a_list_of_nobody_is_a_list_and_an_empty_text_is_none() -> None:
    assert parse_allow("# nobody yet\n", "f") == {}
    for text in ("", " \n"):
        with pytest.raises(ConfigError, match="is empty"):
            parse_allow(text, "f")


def test_a_list_has_so_many_entries_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_allow, "PEERS_MAX", 2)
    grants = [Grant("a", bytes([n]) * KEY_BYTES) for n in range(3)]
    assert len(parse_allow(format_allow(grants[:2]), "f")) == 2
    with pytest.raises(ConfigError, match="2"):
        parse_allow(format_allow(grants), "f")


@pytest.mark.parametrize("value", [None, 7, "", "ab" * 31, "ab" * 33, "zz" * 32, "é" * 64])
def test_what_is_no_public_key_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="is not a public key"):
        parse_public_key("f", value)


def test_a_public_key_is_read_in_either_case() -> None:
    assert parse_public_key("f", "aB" * KEY_BYTES) == b"\xab" * KEY_BYTES


@pytest.mark.parametrize("value", [None, 7, "", "a b", "a/b", "x" * 1000, "a*b", "*-eu", "a**"])
def test_what_is_no_name_of_an_entry_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        check_grant_name("f", value)


@pytest.mark.parametrize("value", ["*", "desk", "desk-*"])
def test_a_name_may_end_in_a_star(value: str) -> None:
    assert check_grant_name("f", value) == value


def test_no_pattern_at_all_permits_nothing() -> None:
    assert check_patterns("f", []) == ()
    nobody = Grant("a", b"k", (), ())
    assert not nobody.may_publish("a")
    assert not nobody.may_subscribe("a")
