"""Values as users write them: what is taken, and an error that names the field for all else."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshmsg._model.errors import ConfigError
from meshmsg._model.units import (
    NAME_BYTES_MAX,
    PATTERNS_BYTES_MAX,
    PATTERNS_MAX,
    addresses,
    check_address,
    check_count,
    check_name,
    check_text,
    one_of,
    parse_size,
    parse_time,
    several,
    split_host,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        ("65536", 65536),
        ("64kB", 64_000),
        ("64KiB", 65_536),
        (" 1.5 GB ", 1_500_000_000),
        ("2TiB", 2 << 40),
        ("10b", 10),
    ],
)
def test_a_size_is_read(text: int | str, size: int) -> None:
    assert parse_size("f", text) == size


@pytest.mark.parametrize(
    "text", [0, -1, True, 1.5, None, "", "kB", "1XB", "-1kB", "0", "0.0001", "1 2", "1e3", "9" * 19]
)
def test_another_size_is_refused_by_its_field(text: Any) -> None:
    with pytest.raises(ConfigError, match="is not a size") as caught:
        parse_size("history", text)
    assert caught.value.field == "history"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0.0),
        (1.5, 1.5),
        ("250us", 0.00025),
        ("500ms", 0.5),
        ("30s", 30.0),
        (" 5 m ", 300.0),
        ("2h", 7200.0),
        ("7d", 604_800.0),
        ("3", 3.0),
    ],
)
def test_a_time_is_read(text: float | str, seconds: float) -> None:
    assert parse_time("f", text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", [-1, math.inf, math.nan, True, None, "", "s", "-1s", "1 week", "1e3s", "9" * 19, b"1s"]
)
def test_another_time_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        parse_time("linger", text)


def test_a_word_is_one_of_those_that_there_are() -> None:
    assert one_of("f", "block", ("block", "buffer")) == "block"
    with pytest.raises(ConfigError, match=r"'blok' is not one of .*did you mean 'block'"):
        one_of("f", "blok", ("block", "buffer"))
    with pytest.raises(ConfigError, match=r"7 is not one of block, buffer$"):
        one_of("f", 7, ("block", "buffer"))


@pytest.mark.parametrize("name", ["a", "pricing", "münchen", "a-b_c.1", "x" * NAME_BYTES_MAX])
def test_a_name_is_taken_as_it_is(name: str) -> None:
    assert check_name("name", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        None,
        5,
        "a b",
        "a/b",
        "a@b",
        "a\n",
        "\x00",
        "x" * (NAME_BYTES_MAX + 1),
        "ü" * 65,
        "\ud800",
    ],
)
def test_another_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError):
        check_name("name", name)


def test_patterns_are_counted_and_weighed() -> None:
    check_count("patterns", ["a"] * PATTERNS_MAX)
    check_count("patterns", ["a" * PATTERNS_BYTES_MAX])
    for patterns in ([], ["a"] * (PATTERNS_MAX + 1), ["ü" * (PATTERNS_BYTES_MAX // 2), "a"]):
        with pytest.raises(ConfigError):
            check_count("patterns", patterns)


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:7000", "tcp://*:*", "tcp://[::1]:0", "ipc:///tmp/x", "ipc://x"]
)
def test_an_address_is_taken(address: str) -> None:
    assert check_address("listen", address) == address


@pytest.mark.parametrize(
    "address",
    [
        None,
        "",
        "127.0.0.1:7000",
        "udp://a:1",
        "tcp://a",
        "tcp://:1",
        "ipc://",
        "tcp://a:70000",
        "tcp://a:\u0661",
        "tcp://a:-1",
    ],
)
def test_another_address_is_refused(address: Any) -> None:
    with pytest.raises(ConfigError):
        check_address("listen", address)


def test_a_host_and_its_port_are_split() -> None:
    assert split_host("f", "127.0.0.1:8125") == ("127.0.0.1", 8125)
    assert split_host("f", "[::1]:65535") == ("::1", 65535)
    for value in (None, "", "host", "host:", ":1", "[]:1", "host:65536", "host:x"):
        with pytest.raises(ConfigError, match="is not a host and a port"):
            split_host("f", value)


def test_one_or_several_make_a_tuple() -> None:
    assert addresses("f", "tcp://a:1") == ("tcp://a:1",)
    assert addresses("f", ["tcp://a:1", "ipc://x"]) == ("tcp://a:1", "ipc://x")
    assert several("f", 5, int, "a number") == (5,)
    assert several("f", (n for n in (1, 2)), int, "numbers") == (1, 2)
    for value in ({"a": 1}, b"a", 7):
        with pytest.raises(ConfigError, match="is not an address"):
            addresses("f", value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        addresses("f", ["tcp://a:1", 5])  # type: ignore[list-item]


@pytest.mark.parametrize("value", ["", None, 5, b"x"])
def test_a_text_is_not_empty(value: Any) -> None:
    check_text("f", "x")
    with pytest.raises(ConfigError, match="is not a text"):
        check_text("f", value)
