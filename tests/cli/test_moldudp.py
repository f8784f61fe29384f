"""`meshmsg moldudp`, short but whole."""

from __future__ import annotations

import random
import socket
from typing import Any

import pytest


def line() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return f"239.255.{random.randint(1, 254)}.81:{probe.getsockname()[1]}"


def test_moldudp_there_and_back(start: Any) -> None:
    where = line()
    pub = start(
        "pub", "feed.a", "hello {n}", "-n", "50", "-b", "tcp://127.0.0.1:*", "--wait-timeout", "60s"
    )
    send = start(
        "moldudp", "send", "**", "-l", where, "-c", pub.address(), "-n", "50", "--linger", "10m"
    )
    server = send.wait_for_line(r"requests to (\S+)", err=True)[1]
    recv = start(
        "moldudp", "recv", "back.feed", "-l", where, "--server", server, "-b", "tcp://127.0.0.1:*",
        "--wait", "1",
    )  # fmt: skip
    sub = start("sub", "back.**", "-c", recv.address(), "-n", "50", "--json")
    assert pub.end() == 0, pub.errors()
    assert sub.end() == 0, sub.errors()
    found = sub.objects()
    assert [int(one["key"]) for one in found] == list(range(1, 51))
    assert recv.end() == 0, recv.errors()
    send.interrupt()
    assert send.end() == 130, send.errors()
    assert "published 50 messages, none lost" in recv.errors()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "**", "-l", "nowhere", "-c", "tcp://127.0.0.1:1"), "lines"),
        (("send", "**", "-l", "239.255.7.7:30001"), "--connect"),
        (("recv", "x", "-l", "10.0.0.1:5", "-b", "tcp://127.0.0.1:*"), "lines"),
        (("recv", "x", "-l", "239.255.7.7:5", "-b", "ipc:///x", "--server", "x"), "server"),
    ],
)
def test_moldudp_wrong_usage(run: Any, arguments: tuple[str, ...], said: str) -> None:
    result = run("moldudp", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
