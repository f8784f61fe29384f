"""`meshmsg nng`, as processes and with wrong arguments."""

from __future__ import annotations

from typing import Any

import pynng
import pytest


def test_pushed_messages_come_out_as_events(start: Any) -> None:
    options = ("--kind", "pull", "--listen", "--topic", "nng.jobs")
    bridge = start("nng", "in", "tcp://127.0.0.1:0", *options)
    url = bridge.wait_for_line(r"pull at (\S+)", err=True)[1]
    address = bridge.address()
    reader = start("sub", "nng.**", "--json", "-n", "2", "--start", "earliest", "-c", address)
    with pynng.Push0(dial=url) as push:
        push.send(b"one")
        push.send(b"two")
        assert reader.end() == 0
    assert [event["data"] for event in reader.objects()] == ["one", "two"]
    bridge.interrupt()
    assert bridge.end() == 130


@pytest.mark.parametrize(
    "arguments",
    [
        ("in", "bogus://x", "--topic", "nng.all"),
        ("in", "tcp://127.0.0.1:0", "--kind", "pub"),
        ("in", "tcp://127.0.0.1:0", "--topic", "a b"),
        ("out", "tcp://127.0.0.1:0", "-c", "tcp://127.0.0.1:1"),
        ("out", "tcp://127.0.0.1:0", "--topics", "a"),
        ("out", "tcp://127.0.0.1:0", "--topics", "a", "--kind", "sub", "-c", "tcp://127.0.0.1:1"),
        ("out", "tcp://127.0.0.1:0", "--topics", "a", "--cursor", "x", "-c", "tcp://127.0.0.1:1"),
    ],
)
def test_wrong_usage_is_said(run: Any, arguments: tuple[str, ...]) -> None:
    result = run("nng", *arguments)
    assert result.exit_code == 2
    assert result.stderr
