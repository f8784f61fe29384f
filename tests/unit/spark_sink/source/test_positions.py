"""Offsets of the Spark source: what they name, and how they are shared out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmsg import ConfigError
from meshmsg.spark_sink.errors import OtherCheckpoint
from meshmsg.spark_sink.source import positions as at
from meshmsg.spark_sink.source.positions import Range

A = "shop/a.**"


def test_keys_hold_stream_and_epoch() -> None:
    assert at.key_of("x/y/z.**", 17) == "x/y/z.**/17"
    assert at.parse_key("x/y/z.**/17") == ("x/y/z.**", 17)
    for text in ("", "17", "x/17", "x/y/", "x/y/z", "x/y/-3"):
        assert at.parse_key(text) is None


@pytest.mark.parametrize(
    "offset", [5, [], {"x": 1}, {"p/s/5": "7"}, {"p/s/5": -1}, {"p/s/5": True}, {"topic": {"0": 4}}]
)
def test_offsets_of_others_are_refused(offset: object) -> None:
    with pytest.raises(OtherCheckpoint, match="name another folder, or delete this one"):
        at.check_offset(offset)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99), st.integers(1, 99)), max_size=6),
    st.integers(1, 9),
)
def test_shares_are_about_equal_and_whole(pieces: list[tuple[int, int, int]], shares: int) -> None:
    ranges = [Range(A, n, first, first + count) for n, (_, first, count) in enumerate(pieces)]
    parts = at.split(ranges, shares)
    assert len(parts) <= shares
    flat = [(r.epoch, n) for part in parts for r in part for n in range(r.first, r.stop)]
    assert flat == [(r.epoch, n) for r in ranges for n in range(r.first, r.stop)]
    sizes = [sum(r.events for r in part) for part in parts]
    if sizes:
        assert max(sizes) - min(sizes) <= max(1, sum(sizes) // shares)


@pytest.mark.parametrize("text", ["{", "[]", '{"p/s": 5}', '{"p/s/5": "soon"}', '{"p/s/5": -1}'])
def test_positions_that_a_user_wrote_wrongly(text: str) -> None:
    with pytest.raises(ConfigError, match="JSON object of positions"):
        at.parse_positions(text, "option startingPosition")
