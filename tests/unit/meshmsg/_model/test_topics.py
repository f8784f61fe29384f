"""Topics, patterns and filters: examples, brute force over short topics, and every refusal."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshmsg import Peer
from meshmsg._model import topics as _topics
from meshmsg._model.errors import ConfigError, TopicError
from meshmsg._model.topics import (
    MEMO_TOPICS_MAX,
    TOPIC_BYTES_MAX,
    Pattern,
    TopicFilter,
    check_pattern,
    check_topic,
    foreign_wildcards,
)

WELL_FORMED = [
    "a",
    "quotes.eu.AAPL",
    "order-book_1.eu/west",
    "börse.日本",
    "a" * TOPIC_BYTES_MAX,
    "é" * 127,
    ".".join(["a"] * 128),
]

# Each refused by check_topic and by check_pattern, with the part of the message that tells why.
MALFORMED = [
    ("", "is empty; give levels joined by dots, such as"),
    (".", "'.' has an empty level (number 1 of 2)"),
    (".a", "'.a' has an empty level (number 1 of 2)"),
    ("a.", "'a.' has an empty level (number 2 of 2)"),
    ("a..b", "'a..b' has an empty level (number 2 of 3); put a name between every two dots"),
    ("a b", "'a b' has whitespace, ' ' at index 1; use '_' or '-' in a level"),
    ("a\n", "'a\\n' has whitespace, '\\n' at index 1"),
    ("a\u2003b", "has whitespace, '\\u2003' at index 1"),
    ("a\x00", "'a\\x00' has a control character, '\\x00' at index 1; use printable characters"),
    ("a.\x7f", "has a control character, '\\x7f' at index 2"),
    ("\x9b", "has a control character, '\\x9b' at index 0"),
    ("a\ud800", "has a lone surrogate, '\\ud800' at index 1, which UTF-8 cannot carry"),
    ("a" * 256, "is 256 bytes of UTF-8, and 255 are allowed; move detail into the event's key"),
    ("é" * 128, "is 256 bytes of UTF-8, and 255 are allowed"),
    (b"a.b", "is bytes, not str; give text such as"),
    (None, "is NoneType, not str; give text such as"),
]


@pytest.mark.parametrize("text", WELL_FORMED)
def test_well_formed_text_is_returned_as_topic_and_as_pattern(text: str) -> None:
    assert check_topic(text) is text
    assert check_pattern(text) is text


@pytest.mark.parametrize(("text", "why"), MALFORMED)
def test_malformed_topic_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(TopicError) as refusal:
        check_topic(text)
    assert why in str(refusal.value)
    assert str(refusal.value).startswith("topic: ")


@pytest.mark.parametrize(("text", "why"), MALFORMED)
def test_malformed_pattern_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(TopicError) as refusal:
        check_pattern(text)
    assert why in str(refusal.value)
    assert str(refusal.value).startswith("pattern: ")


@pytest.mark.parametrize("topic", ["*", "**", "quotes.*", "quo*"])
def test_topic_with_wildcard_is_refused(topic: str) -> None:
    with pytest.raises(TopicError) as refusal:
        check_topic(topic)
    assert str(refusal.value) == (
        f"topic: {topic!r} has a '*', which only a pattern may have; "
        "name one exact topic, such as 'quotes.eu.AAPL'"
    )


@pytest.mark.parametrize("pattern", ["*", "**", "*.*", "**.**", "a.*.b", "a.**", "**.a.**.b"])
def test_wildcards_as_whole_levels_are_well_formed(pattern: str) -> None:
    assert check_pattern(pattern) is pattern


@pytest.mark.parametrize(
    ("pattern", "level"),
    [("quo*", "quo*"), ("a.*b.c", "*b"), ("***", "***"), ("*.a.**x", "**x"), ("a*b", "a*b")],
)
def test_wildcard_inside_a_level_is_refused_and_a_level_of_its_own_suggested(
    pattern: str, level: str
) -> None:
    with pytest.raises(TopicError) as refusal:
        check_pattern(pattern)
    assert str(refusal.value) == (
        f"pattern: {pattern!r} has a wildcard inside the level {level!r}; write '*' (one level) "
        "or '**' (any number of levels) as a level of its own, as in 'quotes.*.AAPL'"
    )


def test_empty_pattern_points_to_the_one_that_selects_everything() -> None:
    with pytest.raises(TopicError, match=r"to select every topic write '\*\*'"):
        check_pattern("")


def test_refusal_carries_its_fields() -> None:
    with pytest.raises(ConfigError) as refusal:
        check_topic("a..b")
    assert refusal.value.field == "topic"
    assert refusal.value.problem.startswith("'a..b' has an empty level")


def test_refusal_of_huge_text_stays_short() -> None:
    with pytest.raises(TopicError) as refusal:
        check_topic("a " * 1_000_000)
    assert len(str(refusal.value)) < 200


@settings(deadline=None)
@given(st.text(st.characters() | st.sampled_from(".* \n\x00\ud800"), max_size=300))
def test_any_text_is_either_returned_or_refused(text: str) -> None:
    for check in (check_topic, check_pattern):
        try:
            assert check(text) is text
        except TopicError:
            continue
        assert 0 < len(text.encode()) <= TOPIC_BYTES_MAX
        assert all(level and not any(c.isspace() for c in level) for level in text.split("."))


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "orders.eu", False),
        ("orders", "order", False),
        ("orders.eu", "orders", False),
        ("orders.**", "orders", True),
        ("orders.**", "orders.eu", True),
        ("orders.**", "orders.eu.x", True),
        ("orders.**", "orders2", False),
        ("orders.**", "my.orders", False),
        ("orders.*", "orders", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders.eu.x", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("**", "a", True),
        ("**", "a.b.c", True),
        ("**.**", "a", True),
        ("*.**", "a", True),
        ("*.**.*", "a", False),
        ("*.**.*", "a.b", True),
        ("**.z", "z", True),
        ("**.z", "a.b.z", True),
        ("**.z", "a.z.b", False),
        ("a.**.z", "a.z", True),
        ("a.**.z", "a.b.c.z", True),
        ("a.**.z", "a", False),
        ("a.**.a", "a", False),
        ("a.**.a", "a.a", True),
        ("**.a.*.c.**", "x.a.b.b.c.y", False),
        ("**.a.*.c.**", "x.a.a.b.c.y", True),
        ("**.a.*.c.**", "x.a.b.a.b.c", True),
        ("**.a.b.**.b", "a.b", False),
        ("**.a.b.**.b", "a.b.b", True),
        ("a+.b", "aa.b", False),
        ("A", "a", False),
    ],
)
def test_pattern_matches(pattern: str, topic: str, expected: bool) -> None:
    assert Pattern(pattern).matches(topic) is expected
    assert TopicFilter([pattern]).matches(topic) is expected


def brute_force_matches(pattern: list[str], topic: list[str]) -> bool:
    """The definition, word for word."""
    if not pattern:
        return not topic
    if pattern[0] == "**":
        return any(brute_force_matches(pattern[1:], topic[n:]) for n in range(len(topic) + 1))
    if not topic or pattern[0] not in ("*", topic[0]):
        return False
    return brute_force_matches(pattern[1:], topic[1:])


def dotted(levels: str, *, most: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(levels.split()), min_size=1, max_size=most).map(".".join)


@settings(deadline=None, max_examples=1000)
@given(pattern=dotted("a b * **", most=7), topic=dotted("a b c", most=8))
def test_matching_agrees_with_the_definition(pattern: str, topic: str) -> None:
    expected = brute_force_matches(pattern.split("."), topic.split("."))
    assert Pattern(pattern).matches(topic) is expected


# Two patterns of at most four levels that share a topic share one of at most eight levels, one for
# each level of either that is not `**`; and any level a wildcard stands for may as well be an "a".
SHORT_TOPICS = [
    list(levels) for size in range(1, 9) for levels in itertools.product("ab", repeat=size)
]


@settings(deadline=None, max_examples=300)
@given(left=dotted("a b * **", most=4), right=dotted("a b * **", most=4))
@example(left="a.**.b", right="b.**.a")
@example(left="**", right="**.**")
def test_overlap_agrees_with_enumeration_of_short_topics(left: str, right: str) -> None:
    ours, theirs = left.split("."), right.split(".")
    expected = any(
        brute_force_matches(ours, topic) and brute_force_matches(theirs, topic)
        for topic in SHORT_TOPICS
    )
    assert Pattern(left).overlaps(Pattern(right)) is expected
    assert Pattern(right).overlaps(Pattern(left)) is expected
    assert TopicFilter([left]).overlaps(Pattern(right)) is expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("orders.**", "orders", True),
        ("orders.*", "*.eu", True),
        ("orders.*", "orders", False),
        ("orders.**", "quotes.**", False),
        ("a.**", "**.z", True),
        ("a.*", "**.z.z", False),
        ("a.**.z", "*", False),
    ],
)
def test_pattern_overlaps(left: str, right: str, expected: bool) -> None:
    assert Pattern(left).overlaps(Pattern(right)) is expected
    assert Pattern(right).overlaps(Pattern(left)) is expected


@pytest.mark.parametrize(("size", "expected"), [(126, True), (127, True), (128, False)])
def test_patterns_do_not_overlap_where_the_common_topic_would_be_too_long(
    size: int, expected: bool
) -> None:
    left, right = Pattern("a" * size + ".**"), Pattern("**." + "b" * size)
    assert left.overlaps(right) is expected
    assert left.overlaps(left)


def test_length_of_a_common_topic_is_counted_in_bytes() -> None:
    assert Pattern("é" * 63 + ".**").overlaps(Pattern("**." + "b" * 128))
    assert not Pattern("é" * 63 + ".**").overlaps(Pattern("**." + "b" * 129))


@pytest.mark.parametrize("wildcards", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("last", ["a", "b"])
def test_matching_tries_each_level_of_the_topic_once(
    wildcards: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    stands_at = _topics._stands_at

    def counted(run: tuple[str, ...], levels: list[str], at: int) -> bool:
        nonlocal attempts
        attempts += 1
        return stands_at(run, levels, at)

    monkeypatch.setattr(_topics, "_stands_at", counted)
    pattern = Pattern("**.a." * wildcards + "**.b.a.**." + last)
    topic = ".".join(["a"] * 128)
    assert not pattern.matches(topic)
    # Once for the head, once for the tail, and then never again at a level left behind.
    assert 0 < attempts <= 2 + len(topic.split("."))


def test_matching_stays_linear_on_topics_longer_than_any_real_one() -> None:
    assert not Pattern("**.a." * 48 + "**.b.**").matches(".".join(["a"] * 20_000))


def test_overlap_of_the_most_wildcards_that_fit_is_decided() -> None:
    left = Pattern(".".join(["**.a"] * 50 + ["b"]))
    right = Pattern(".".join(["**.a"] * 50 + ["c"]))
    assert not left.overlaps(right)
    assert left.overlaps(Pattern(".".join(["*.**"] * 50)))


def test_pattern_is_equal_and_hashed_by_text() -> None:
    assert Pattern("a.*") == Pattern("a.*")
    assert hash(Pattern("a.*")) == hash(Pattern("a.*"))
    assert Pattern("**") != Pattern("**.**")
    assert {Pattern("a"), Pattern("a")} == {Pattern("a")}
    assert repr(Pattern("a.*")) == "Pattern(text='a.*')"


def test_pattern_cannot_be_changed() -> None:
    pattern = Pattern("a.*")
    with pytest.raises(dataclasses.FrozenInstanceError):
        pattern.text = "b"  # type: ignore[misc]


def test_pattern_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(Pattern("a.**.b")))
    assert again == Pattern("a.**.b")
    assert again.matches("a.x.b")


def test_malformed_pattern_cannot_be_built() -> None:
    with pytest.raises(TopicError, match="wildcard inside the level"):
        Pattern("quo*")
    with pytest.raises(TopicError, match="wildcard inside the level"):
        TopicFilter(["orders.**", "quo*"])


def test_filter_passes_what_any_of_its_patterns_selects() -> None:
    topics = TopicFilter(["orders.**", "quotes.*"])
    assert topics.matches("orders.eu.x")
    assert topics.matches("quotes.AAPL")
    assert not topics.matches("quotes.eu.AAPL")
    assert topics.patterns == (Pattern("orders.**"), Pattern("quotes.*"))
    assert repr(topics) == "TopicFilter(['orders.**', 'quotes.*'])"


def test_filter_takes_patterns_from_any_iterable() -> None:
    assert TopicFilter(iter(["a", "b"])).matches("b")


def test_filter_without_patterns_passes_nothing() -> None:
    nothing = TopicFilter([])
    assert not nothing.matches("a")
    assert not nothing.overlaps(Pattern("**"))


def test_filter_refuses_a_bare_string() -> None:
    with pytest.raises(TopicError, match=r"patterns: is the single str 'a'; put it in a list"):
        TopicFilter("a")


def test_filter_overlaps_if_any_of_its_patterns_does() -> None:
    topics = TopicFilter(["orders.**", "quotes.*"])
    assert topics.overlaps(Pattern("*.AAPL"))
    assert not topics.overlaps(Pattern("trades.**"))


@pytest.mark.parametrize("topic", ["orders.eu", "trades"])
def test_filter_decides_a_topic_only_once(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = TopicFilter(["orders.**"])
    first = topics.matches(topic)

    def never(self: TopicFilter, topic: str) -> bool:
        raise AssertionError(f"{topic} was decided again")

    monkeypatch.setattr(TopicFilter, "_decide", never)
    assert topics.matches(topic) is first


def test_filter_memo_is_bounded_and_counts_its_resets() -> None:
    topics = TopicFilter(["even.**"])
    names = [f"{'odd' if n % 2 else 'even'}.{n}" for n in range(MEMO_TOPICS_MAX + 1)]
    for n, name in enumerate(names[:MEMO_TOPICS_MAX]):
        assert topics.matches(name) is (n % 2 == 0)
    assert len(topics._memo) == MEMO_TOPICS_MAX
    assert topics.memo_resets == 0
    assert topics.matches(names[-1])
    assert len(topics._memo) == 1
    assert topics.memo_resets == 1
    assert topics.matches(names[0])
    assert not topics.matches(names[1])


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("orders.#", "'orders.**'"),
        ("orders.>", "'orders.**'"),
        ("orders.+.eu", "'orders.*.eu'"),
        ("orders/+/eu/#", "'orders.*.eu.**'"),
        ("^orders", "regular expression"),
        ("(orders|quotes).eu", "regular expression"),
        (r"orders\.eu", "regular expression"),
        ("orders.[a-z]", "regular expression"),
        ("orders-.*", "regular expression"),
        ("orders.*.**", ""),
        ("a+b.c#.x>y/z", ""),
        ("BRK(B).C++.$x", ""),
    ],
)
def test_wildcards_of_other_systems_are_told_apart(pattern: str, hint: str) -> None:
    assert hint in foreign_wildcards(pattern)
    assert bool(foreign_wildcards(pattern)) is bool(hint)


def test_subscribing_with_wildcards_of_other_systems_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Peer("p") as peer, peer.subscribe("orders.#", "quotes.**"):
        pass
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "subscribing to 'orders.#': '#' is no wildcard here: write 'orders.**'"
    ]
