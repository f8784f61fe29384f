"""Many events of one topic become runs of a frame each; a bad one is told after those before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshmsg._model.codecs import codec_for
from meshmsg._model.errors import ConfigError, EventTooLarge, MeshError, PayloadError
from meshmsg._publish import event_runs as _runs
from meshmsg._publish.event_runs import (
    OFFSET_COST,
    Run,
    check_notes,
    cuts,
    headers_fit,
    keys_of,
    runs_of,
    scan,
)
from meshmsg._wire.frame import HEADERS_BYTES_MAX


def outlet(size_max: int = 100, event_bytes_max: int = 50) -> Any:
    codec = codec_for("msgpack")
    return SimpleNamespace(codec=codec, size_max=size_max, event_bytes_max=event_bytes_max)


def runs(items: Any, keys: Any = None, headers: Any = None, **options: int) -> list[Run]:
    return list(runs_of(outlet(**options), "t", items, keys, headers))


@pytest.mark.parametrize("lengths", [[6] * 25, [1, 50, 3, 200, 4, 4, 4], [7], [0, 0]])
def test_cuts_leave_nothing_out_and_fill_frames_as_far_as_they_go(lengths: list[int]) -> None:
    payloads = [b"x" * length for length in lengths]
    uniform = lengths[0] if len(set(lengths)) == 1 else -1
    pieces = list(cuts(payloads, uniform, 0, 100))
    assert [at for piece in pieces for at in range(*piece)] == list(range(len(lengths)))
    for lo, hi in pieces:
        size = sum(lengths[lo:hi]) + OFFSET_COST * (hi - lo)
        assert size <= 100 or hi - lo == 1
        if hi < len(lengths):
            assert size + lengths[hi] + OFFSET_COST > 100


def test_payloads_are_looked_at_all_at_once() -> None:
    assert scan([]) == (True, -1, 0)
    assert scan([b"ab", b"cd"]) == (True, 2, 2)
    assert scan([b"ab", b"c"]) == (True, -1, 2)
    assert scan([b"ab", "c"])[0] is False
    assert scan(["ab", b"c"])[0] is False
    assert scan([bytearray(b"ab")])[0] is False


def test_bytes_go_as_they_are_and_values_encoded() -> None:
    [run] = runs([b"raw", {"a": 1}, bytearray(b"x")])
    assert run.payloads == [b"raw", b"\x81\xa1a\x01", b"x"]
    assert (run.raw, run.length) == (b"\1\0\1", -1)
    [values] = runs([1, 2])
    assert (values.raw, values.length) == (False, 1)


def test_keys_and_headers_stay_with_their_events_across_frames() -> None:
    found = runs([b"x" * 20] * 10, [f"k{n}" if n % 3 == 0 else None for n in range(10)], {"n": 1})
    assert len(found) > 1
    at = 0
    for run in found:
        for n in range(len(run.payloads)):
            assert run.keys.get(n) == (f"k{at}" if at % 3 == 0 else None)
            assert run.headers[n] == b"\x81\xa1n\x01"
            at += 1
    assert at == 10


def test_events_before_a_bad_one_are_published_first() -> None:
    made = runs_of(outlet(), "t", [b"a", b"b", b"x" * 51, b"c"], None, None)
    assert next(made).payloads == [b"a", b"b"]
    with pytest.raises(EventTooLarge) as caught:
        next(made)
    assert (caught.value.size_bytes, caught.value.max_bytes) == (51, 50)
    made = runs_of(outlet(), "t", [1, object(), 2], None, None)
    assert next(made).payloads == [b"\x01"]
    with pytest.raises(PayloadError):
        next(made)


def test_keys_and_headers_count_for_the_size_of_an_event() -> None:
    assert runs([b"x" * 46], ["k"])
    with pytest.raises(EventTooLarge):
        runs([b"x" * 47], ["k"])
    with pytest.raises(EventTooLarge):
        runs([b"x" * 47], None, {"n": 1})


def test_a_bad_key_is_told_after_the_events_before_it() -> None:
    made = runs_of(outlet(), "t", [b"a", b"b"], ["k", 5], None)  # type: ignore[list-item]
    assert next(made).payloads == [b"a"]
    with pytest.raises(ConfigError, match="must be a str"):
        next(made)


@pytest.mark.parametrize("keys", [[], ["a"], ["a"] * 3])
def test_there_are_as_many_keys_as_events(keys: list[str]) -> None:
    with pytest.raises(ConfigError, match="keys for 2 events"):
        runs([b"a", b"b"], keys)


def test_many_events_go_in_chunks_and_an_iterable_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_runs, "RUN_EVENTS_MAX", 4)
    found = runs((b"%d" % n for n in range(10)), [f"k{n}" for n in range(10)], size_max=10_000)
    assert [len(run.payloads) for run in found] == [4, 4, 2]
    assert [run.keys[0] for run in found] == ["k0", "k4", "k8"]
    assert runs([]) == []


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (5, None),
        ("\ud800", None),
        (None, [("a", 1)]),
        (None, {1: 2}),
        (None, {"a": object()}),
        (None, {"a": b"x" * HEADERS_BYTES_MAX}),
        (None, {"a": 1 << 70}),
    ],
)
def test_notes_that_cannot_be_carried_are_refused(key: Any, headers: Any) -> None:
    with pytest.raises(MeshError):
        check_notes(key, headers)


@pytest.mark.parametrize(
    ("size", "fit"), [(HEADERS_BYTES_MAX - 8, True), (HEADERS_BYTES_MAX, False)]
)
def test_headers_fit_as_far_as_an_event_has_room(size: int, fit: bool) -> None:
    assert headers_fit({"a": b"x" * size}) is fit
    assert not headers_fit({"a": object()})


def test_notes_that_can_are_packed() -> None:
    assert check_notes("ü", None) is None
    assert check_notes(None, {}) == b"\x80"
    assert keys_of(["a", None, ""]) == {0: "a", 2: ""}
    assert keys_of(None) == {}
