"""The allow-list: which public keys take part, under which name, and what each of them may do.

Pure: text in, answers out.  `allow.toml` has one table for each peer:

    [[peer]]
    name = "pricing"            # as the peer calls itself; "pricing-*" and "*" stand for several,
                                # without the names that other entries give more exactly
    key = "8f2c..."             # its public key: 64 hexadecimal digits
    publish = ["quotes.**"]     # all topics if not given
    subscribe = []              # all topics if not given
    stats = false               # may ask for statistics and ledgers; true if not given
    operate = true              # may pause and reset groups, evict, drain; false if not given
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from meshmsg._model.errors import ConfigError, TopicError
from meshmsg._model.topics import Pattern
from meshmsg._model.units import check_name

KEY_BYTES = 32
PEERS_MAX = 100_000
#: Places in patterns that are looked at before a permission counts as not given: about 1 ms.
STEPS_MAX = 1_000
#: Answers that take so long, of the patterns that one message names.
SEARCHES_MAX = 256
#: Answers that are remembered.
COVERS_MAX = 4_096
_KEYS = ("name", "key", "publish", "subscribe", "stats", "operate")
_ELSE = "\0"  # a level that no pattern names


@dataclass(frozen=True, slots=True)
class Grant:
    """What the holder of one key may do."""

    name: str
    key: bytes
    publish: tuple[str, ...] = ("**",)
    subscribe: tuple[str, ...] = ("**",)
    stats: bool = True
    operate: bool = False

    def may_publish(self, topics: str) -> bool:
        """Whether it may publish every topic of a pattern."""
        return covers(self.publish, topics)

    def may_subscribe(self, topics: str) -> bool:
        """Whether it may receive every topic of a pattern."""
        return covers(self.subscribe, topics)


class Names:
    """Which keys may use a name.

    A name belongs to the entry that gives it exactly, else to the one with the longest beginning of
    it: who may use `*` may not pass for a peer that the list names otherwise.
    """

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._keys: dict[str, set[bytes]] = {}
        for grant in grants:
            self._keys.setdefault(grant.name, set()).add(grant.key)

    def keys_of(self, peer: str) -> AbstractSet[bytes]:
        """The keys that may call themselves so; none if no entry gives this name."""
        entries = (peer, *(f"{peer[:length]}*" for length in range(len(peer), -1, -1)))
        return next((self._keys[entry] for entry in entries if entry in self._keys), frozenset())


def parse_allow(text: str, where: str) -> dict[bytes, Grant]:
    """The grants of an `allow.toml` by public key; raises `ConfigError` that says where."""
    if not text.strip():  # cut short by accident; a list of nobody has a comment at least
        raise ConfigError(where, "is empty: `meshmsg keys allow` writes it")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(where, f"is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(where, "is not TOML that makes sense: it is nested too deeply") from None
    peers = tables.pop("peer", [])
    if tables or not isinstance(peers, list):
        raise ConfigError(where, "write [[peer]], once for each peer, and nothing else")
    if len(peers) > PEERS_MAX:
        raise ConfigError(where, f"names more than {PEERS_MAX} peers")
    grants: dict[bytes, Grant] = {}
    for number, table in enumerate(peers):
        grant = _grant(table, f"{where}: peer[{number}]")
        if grant.key in grants:
            raise ConfigError(f"{where}: peer[{number}].key", "stands twice")
        grants[grant.key] = grant
    return grants


def parse_public_key(where: str, value: object) -> bytes:
    """32 bytes from 64 hexadecimal digits; raises `ConfigError`."""
    if isinstance(value, str) and len(value) == 2 * KEY_BYTES and value.isascii():
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    problem = "is not a public key, which has 64 hexadecimal digits: `meshmsg keys show DIR`"
    raise ConfigError(where, problem)


def check_grant_name(where: str, value: object) -> str:
    """A peer's name, or the beginning of several with `*` behind; raises `ConfigError`."""
    if value == "*":
        return "*"
    if not isinstance(value, str):
        raise ConfigError(where, f"{value!r} is not a name")
    beginning = check_name(where, value.removesuffix("*"))
    if "*" in beginning:
        problem = f"{value!r} fits nobody: a star stands at the end, for what may follow"
        raise ConfigError(where, problem)
    return value


def _grant(table: Any, where: str) -> Grant:
    if not isinstance(table, dict):
        raise ConfigError(where, "is not a table")
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"{where}.{key}", f"is not a key here: use {', '.join(_KEYS)}")
    stats, operate = table.get("stats", True), table.get("operate", False)
    for field, value in (("stats", stats), ("operate", operate)):
        if not isinstance(value, bool):
            raise ConfigError(f"{where}.{field}", "is neither true nor false")
    return Grant(
        check_grant_name(f"{where}.name", table.get("name")),
        parse_public_key(f"{where}.key", table.get("key")),
        check_patterns(f"{where}.publish", table.get("publish", ["**"])),
        check_patterns(f"{where}.subscribe", table.get("subscribe", ["**"])),
        stats,
        operate,
    )


def check_patterns(where: str, value: object) -> tuple[str, ...]:
    """Topic patterns, none of them for nothing; raises `ConfigError`."""
    if not isinstance(value, list | tuple):
        raise ConfigError(where, "is not a list of patterns: write ['orders.**']")
    try:
        return tuple(Pattern(text).text for text in value)
    except TopicError as error:
        raise ConfigError(where, error.problem) from None


def covered(granted: tuple[str, ...], wanted: Iterable[str]) -> set[str]:
    """Of patterns that somebody else chose, those that are covered.

    Only some of them may be such that the answer takes a search: others count as not covered.
    """
    found, searches = set(), 0
    for topics in set(wanted):
        if _is_plainly_covered(granted, topics):
            found.add(topics)
        elif searches < SEARCHES_MAX:
            searches += 1
            if covers(granted, topics):
                found.add(topics)
    return found


def _is_plainly_covered(granted: tuple[str, ...], topics: str) -> bool:
    """Whether one granted pattern is the same, or `**` behind levels that it begins with."""
    if topics in granted or "**" in granted:
        return True
    return any(
        text.endswith(".**") and "*" not in text[:-2] and f"{topics}.".startswith(text[:-2])
        for text in granted
    )


@lru_cache(maxsize=COVERS_MAX)
def covers(granted: tuple[str, ...], topics: str) -> bool:
    """Whether every topic that `topics` selects is selected by one of the granted patterns.

    The search for an answer has so many steps and no more: then it is no.

    >>> covers(("orders.**",), "orders.eu.*"), covers(("orders.eu",), "orders.*")
    (True, False)
    """
    if _is_plainly_covered(granted, topics):
        return True
    wanted = topics.split(".")
    given = [text.split(".") for text in granted]
    start = (_closure(wanted, {0}), tuple(_closure(levels, {0}) for levels in given))
    seen, edge, steps = {start}, [start], 0
    # Both sides walk through all topics together, level by level.
    while edge:
        ours, theirs = edge.pop()
        for symbol in _symbols(wanted, ours, given, theirs):
            steps += len(ours) + sum(map(len, theirs))
            if steps > STEPS_MAX:
                return False
            step = _step(wanted, ours, symbol)
            if not step:
                continue
            after = tuple(
                _step(levels, at, symbol) for levels, at in zip(given, theirs, strict=True)
            )
            ends = (len(levels) in at for levels, at in zip(given, after, strict=True))
            if len(wanted) in step and not any(ends):
                return False
            state = (step, after)
            if state not in seen:
                seen.add(state)
                edge.append(state)
    return True


def _symbols(
    wanted: list[str],
    ours: frozenset[int],
    given: list[list[str]],
    theirs: tuple[frozenset[int], ...],
) -> list[str]:
    """The next levels of a topic that make a difference: those that a pattern names here."""
    named = {
        levels[p] for levels, at in zip(given, theirs, strict=True) for p in at if p < len(levels)
    }
    own = {wanted[p] for p in ours if p < len(wanted)}
    if own.isdisjoint(("*", "**")):
        return sorted(own)
    return [*sorted((named | own) - {"*", "**"}), _ELSE]


def _closure(levels: list[str], places: Iterable[int]) -> frozenset[int]:
    """Places in a pattern that can be reached without a further level."""
    reached = set(places)
    for place in sorted(reached):
        while place < len(levels) and levels[place] == "**":
            place += 1
            reached.add(place)
    return frozenset(reached)


def _step(levels: list[str], places: frozenset[int], symbol: str) -> frozenset[int]:
    after = set()
    for place in places:
        if place < len(levels):
            level = levels[place]
            if level == "**":
                after.add(place)
            elif level == "*" or level == symbol:
                after.add(place + 1)
    return _closure(levels, after)
