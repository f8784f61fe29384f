"""Topics and the patterns that select them.

Belongs here: what a well-formed topic or pattern is, and which topics a pattern selects. Does not
belong here: who subscribes to what, or how a subscription travels. Pure: text in, answers out.

A topic is dotted levels, `quotes.eu.AAPL`. In a pattern, a level may also be `*`, exactly one
level, or `**`, any number of levels, none included, at any place:

    orders.**     orders, orders.eu, orders.eu.retail
    quotes.*.A    quotes.eu.A
    a.**.z        a.z, a.b.z, a.b.c.z

Why no regular expression: `**.a.**.a.**.a` becomes nested repeats, and a backtracking engine tries
every way to share a long topic out among them, so a subscriber's pattern could stall a publisher.
Here a pattern is cut at each `**` into runs of fixed length. The first run must stand at the head
of the topic and the last at its tail; each run between is put at the leftmost place it fits.
Leftmost is never wrong, since it leaves the most room for the rest, so nothing is tried twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshmsg._model.errors import TopicError

TOPIC_BYTES_MAX = 255
"""A topic's or pattern's length in UTF-8: what one length byte can say."""

MEMO_TOPICS_MAX = 200_000
"""How many topics a filter remembers before it forgets them all and starts again."""

ONE = "*"
ANY = "**"

_CHARACTER = r"[^\s.*\x00-\x1f\x7f-\x9f\ud800-\udfff]"
_TOPIC = re.compile(rf"{_CHARACTER}+(?:\.{_CHARACTER}+)*")
_LEVEL_OR_WILDCARD = rf"(?:{_CHARACTER}+|\*\*?)"
_PATTERN = re.compile(rf"{_LEVEL_OR_WILDCARD}(?:\.{_LEVEL_OR_WILDCARD})*")
_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_topic(topic: str) -> str:
    """Return the topic if it is well formed; raises TopicError that says what is wrong.

    >>> check_topic("quotes.eu.AAPL")
    'quotes.eu.AAPL'
    """
    if not (isinstance(topic, str) and _TOPIC.fullmatch(topic) and _fits_length(topic)):
        raise TopicError("topic", _problem(topic, wildcards=False))
    return topic


def check_pattern(pattern: str) -> str:
    """Return the pattern if it is well formed; raises TopicError that says what is wrong.

    >>> check_pattern("quotes.*.AAPL")
    'quotes.*.AAPL'
    """
    if not (isinstance(pattern, str) and _PATTERN.fullmatch(pattern) and _fits_length(pattern)):
        raise TopicError("pattern", _problem(pattern, wildcards=True))
    return pattern


@dataclass(frozen=True, slots=True)
class Pattern:
    """A checked pattern, equal to another of the same text; raises TopicError if malformed.

    >>> Pattern("orders.**").matches("orders.eu")
    True
    """

    text: str
    """The pattern as written."""
    _head: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The levels before the first `**`: all of them when there is none."""
    _middle: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    """The runs of levels between one `**` and the next."""
    _tail: tuple[str, ...] | None = field(init=False, repr=False, compare=False)
    """The levels after the last `**`; None when there is no `**`."""

    def __post_init__(self) -> None:
        runs = _runs(check_pattern(self.text).split("."))
        object.__setattr__(self, "_head", runs[0])
        object.__setattr__(self, "_middle", tuple(run for run in runs[1:-1] if run))
        object.__setattr__(self, "_tail", runs[-1] if len(runs) > 1 else None)

    def matches(self, topic: str) -> bool:
        """Tell whether the pattern selects this topic, one that `check_topic` accepts."""
        levels = topic.split(".")
        head, tail = self._head, self._tail
        if tail is None:
            return len(levels) == len(head) and _stands_at(head, levels, 0)
        at, stop = len(head), len(levels) - len(tail)
        if at > stop or not _stands_at(head, levels, 0) or not _stands_at(tail, levels, stop):
            return False
        for run in self._middle:
            at = _end_of_leftmost(run, levels, at, stop)
            if at < 0:
                return False
        return True

    def overlaps(self, other: Pattern) -> bool:
        """Tell whether any topic is selected by both patterns.

        >>> Pattern("orders.*").overlaps(Pattern("**.eu"))
        True
        """
        if self.text == other.text:
            return True
        size = _shortest_common_bytes(self.text.split("."), other.text.split("."))
        return size <= TOPIC_BYTES_MAX


class TopicFilter:
    """Several patterns as one; a topic passes if any selects it, and with no pattern none passes.

    Raises TopicError for a malformed pattern.

    >>> TopicFilter(["orders.**", "quotes.*"]).matches("quotes.AAPL")
    True
    """

    __slots__ = ("_memo", "memo_resets", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        if isinstance(patterns, str):
            raise TopicError("patterns", f"is the single str {patterns!r:.80}; put it in a list")
        self.patterns: tuple[Pattern, ...] = tuple(Pattern(text) for text in patterns)
        self.memo_resets = 0
        """How many times the memo was full; a high number means topics are used as keys."""
        self._memo: dict[str, bool] = {}

    def matches(self, topic: str) -> bool:
        """Tell whether any pattern selects this topic, one that `check_topic` accepts."""
        try:
            return self._memo[topic]
        except KeyError:
            return self._decide(topic)

    def overlaps(self, pattern: Pattern) -> bool:
        """Tell whether any topic passes this filter and is selected by the pattern too."""
        return any(own.overlaps(pattern) for own in self.patterns)

    def __repr__(self) -> str:
        return f"TopicFilter({[pattern.text for pattern in self.patterns]!r})"

    def _decide(self, topic: str) -> bool:
        passes = any(pattern.matches(topic) for pattern in self.patterns)
        if len(self._memo) >= MEMO_TOPICS_MAX:
            self._memo.clear()
            self.memo_resets += 1
        self._memo[topic] = passes
        return passes


_FOREIGN = {"#": ANY, ">": ANY, "+": ONE}
_REGULAR = re.compile(r"^\^|\$$|\\.|\(.*\|.*\)|\[[^]]+\]|\.\+|[-_]\.\*")


def foreign_wildcards(pattern: str) -> str:
    """Say what to write for wildcards of other systems, which are plain text here; else empty.

    >>> foreign_wildcards("orders.#")
    "'#' is no wildcard here: write 'orders.**'"
    """
    levels = pattern.split(".")
    found = [level for level in levels if level in _FOREIGN]
    if found:
        meant = ".".join(_FOREIGN.get(level, level) for level in levels)
        return f"{found[0]!r} is no wildcard here: write {meant!r}"
    if "/" in pattern and any(part in _FOREIGN for part in pattern.split("/")):
        meant = ".".join(_FOREIGN.get(part, part) for part in pattern.split("/") if part)
        return f"levels are joined by dots, and these are no wildcards here: write {meant!r}"
    if _REGULAR.search(pattern):
        return "is not taken for a regular expression: '*' is one level, '**' any number of them"
    return ""


def _runs(levels: Sequence[str]) -> list[tuple[str, ...]]:
    """Cut the levels at each `**`."""
    runs: list[tuple[str, ...]] = []
    first = 0
    for index, level in enumerate(levels):
        if level == ANY:
            runs.append(tuple(levels[first:index]))
            first = index + 1
    runs.append(tuple(levels[first:]))
    return runs


def _stands_at(run: tuple[str, ...], levels: list[str], at: int) -> bool:
    """Tell whether the run matches the levels from `at` on, of which there must be enough."""
    for wanted in run:
        if wanted != levels[at] and wanted != ONE:
            return False
        at += 1
    return True


def _end_of_leftmost(run: tuple[str, ...], levels: list[str], first: int, stop: int) -> int:
    """Return where the run's leftmost place in levels[first:stop] ends, -1 if it has none."""
    for at in range(first, stop - len(run) + 1):
        if _stands_at(run, levels, at):
            return at + len(run)
    return -1


def _shortest_common_bytes(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Return the length in UTF-8 of the shortest topic that both match, infinity if there is none.

    The length and not only a yes: two patterns can agree on nothing short enough to be a topic.
    Backward over the levels still to be matched, `after[j]` being the answer for ours[i + 1:] and
    theirs[j:], and `row[j]` for ours[i:]; one row at a time, so the work is the product of the
    two lengths. A `**` either ends here, or takes over the other side's next level. Two empty
    remainders cost -1, the dot that the last level does not need.
    """
    nothing = float("inf")
    columns = len(theirs)
    their_bytes = [_level_bytes(their) for their in theirs]
    after = [nothing] * columns + [-1.0]
    for j in reversed(range(columns)):
        if theirs[j] == ANY:
            after[j] = after[j + 1]
    for our in reversed(ours):
        our_bytes = _level_bytes(our)
        row = [nothing] * columns + [after[columns] if our == ANY else nothing]
        for j in reversed(range(columns)):
            their = theirs[j]
            if our == ANY or their == ANY:
                row[j] = min(after[j] + our_bytes, row[j + 1] + their_bytes[j])
            elif our == their or ONE in (our, their):
                row[j] = after[j + 1] + max(our_bytes, their_bytes[j])
        after = row
    return after[0]


def _level_bytes(level: str) -> int:
    """Return the bytes a level needs at least, its dot included: none for `**`, two for `*`."""
    return 0 if level == ANY else len(level.encode()) + 1


def _fits_length(text: str) -> bool:
    # No character takes more than four bytes, so short text needs no encoding to be sure.
    return len(text) <= TOPIC_BYTES_MAX // 4 or len(text.encode()) <= TOPIC_BYTES_MAX


def _problem(text: object, *, wildcards: bool) -> str:
    """Say what is wrong with a refused topic or pattern, and what would be right."""
    example = "'quotes.*.AAPL'" if wildcards else "'quotes.eu.AAPL'"
    if not isinstance(text, str):
        return f"is {type(text).__name__}, not str; give text such as {example}"
    if not text:
        everything = "; to select every topic write '**'" if wildcards else ""
        return f"is empty; give levels joined by dots, such as {example}{everything}"
    size = len(text.encode(errors="surrogatepass"))
    if size > TOPIC_BYTES_MAX:
        return (
            f"is {size} bytes of UTF-8, and {TOPIC_BYTES_MAX} are allowed; "
            "move detail into the event's key or headers"
        )
    found = _FORBIDDEN.search(text)
    if found:
        return f"{text!r} has {_forbidden(found)}"
    levels = text.split(".")
    if "" in levels:
        return (
            f"{text!r} has an empty level (number {levels.index('') + 1} of {len(levels)}); "
            f"put a name between every two dots and none at the ends, as in {example}"
        )
    if not wildcards:
        return (
            f"{text!r} has a '*', which only a pattern may have; "
            f"name one exact topic, such as {example}"
        )
    level = next(level for level in levels if "*" in level and level not in (ONE, ANY))
    return (
        f"{text!r} has a wildcard inside the level {level!r}; write '*' (one level) or '**' "
        f"(any number of levels) as a level of its own, as in {example}"
    )


def _forbidden(found: re.Match[str]) -> str:
    character = found.group()
    where = f"{character!r} at index {found.start()}"
    if character.isspace():
        return f"whitespace, {where}; use '_' or '-' in a level, or '.' between levels"
    if "\ud800" <= character <= "\udfff":
        return f"a lone surrogate, {where}, which UTF-8 cannot carry; decode the text properly"
    return f"a control character, {where}; use printable characters only"
