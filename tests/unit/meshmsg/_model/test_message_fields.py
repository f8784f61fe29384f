"""What a field of a control message takes, at its bounds and beyond them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from meshmsg._model import message_fields as fields
from meshmsg._model.message_fields import as_text, check_range, check_ranges


def takes(kind: Any, value: Any) -> bool:
    try:
        return bool(msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind) == value)
    except msgspec.ValidationError:
        return False


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (fields.U64, [0, (1 << 63) - 1], [-1, 1 << 63]),
        (fields.Id, [0, (1 << 64) - 1], [-1]),
        (fields.Version, [0, 255], [-1, 256]),
        (fields.Prefetch, [1, fields.PREFETCH_MAX], [0, fields.PREFETCH_MAX + 1]),
        (fields.Attempt, [1, fields.ATTEMPTS_MAX], [0, fields.ATTEMPTS_MAX + 1]),
        (fields.Port, [0, 65535], [-1, 65536]),
        (fields.Duration, [0.0, 1e9], [-0.1, 1.1e9, float("inf"), float("nan")]),
        (fields.Short, [b"", b"x" * 64], [b"x" * 65]),
        (fields.Name, ["", "ü b", "x" * 1024], ["x" * 1025, "a\nb", "a\x1b[2J", "a\x85", "\u2028"]),
        (fields.PeerName, ["a", "ü" * 128], ["", "a b", "a/b", "a@b", "x" * 129, "a\n"]),
        (fields.Text, ["x" * 4096], ["x" * 4097, "a\r"]),
        (fields.ErrorText, ["a\nb\x00", "x" * 4096], ["x" * 4097]),
        (fields.Ranges, [[[0, 5]] * 256], [[[0, 5]] * 257, [[0]], [[0, 1, 2]], [[-1, 5]]]),
        (fields.Reasons, [{"a": 1}], [{str(n): 1 for n in range(17)}, {"a\n": 1}]),
        (fields.Patterns, [["a"] * 1024], [["a"] * 1025, ["a\n"]]),
        (fields.Addresses, [["a"] * 16], [["a"] * 17]),
    ],
)
def test_a_field_takes_what_is_within_its_bounds(
    kind: Any, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)
    for value in bad:
        assert not takes(kind, value), value


def test_a_text_becomes_one_line_that_other_peers_take() -> None:
    made = as_text("a\r\n\x1b[2Jb\ud800" + "x" * 5000)
    assert made.startswith("a [2Jb x")
    assert takes(fields.Text, made)


def test_ranges_that_run_backward_are_refused() -> None:
    check_range(3, 3)
    check_ranges([(0, 0), (1, 5, "any")])
    with pytest.raises(ValueError, match="runs backward"):
        check_range(4, 3)
    with pytest.raises(ValueError, match=r"\[5, 1\) runs backward"):
        check_ranges([(0, 1), (5, 1)])
