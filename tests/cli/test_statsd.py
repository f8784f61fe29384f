"""`meshmsg statsd`, as processes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream
from tests.support.waiting import wait_until


def test_metrics_come_out_as_events(start: Any) -> None:
    server = start("statsd", "--bind", "127.0.0.1:0", "--interval", "200ms", "--overflow", "buffer")
    port = int(server.wait_for_line(r"metrics at 127\.0\.0\.1:(\d+)", err=True)[1])
    reader = start(
        "sub", "statsd.aggregate.a", "--json", "--count", "1", "--start", "earliest", "-c",
        server.address(),
    )  # fmt: skip
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"a:3|c", ("127.0.0.1", port))
    assert reader.end() == 0
    (event,) = reader.objects()
    assert (event["data"]["count"], event["data"]["dropped_packets"]) == (3, 0)
    server.interrupt()
    assert server.end() == 130


def test_metrics_are_kept_with_a_data_dir(start: Any, run: Any, tmp_path: Path) -> None:
    server = start(
        "statsd", "--bind", "127.0.0.1:0", "--interval", "200ms", "--data-dir", str(tmp_path)
    )  # fmt: skip
    port = int(server.wait_for_line(r"metrics at 127\.0\.0\.1:(\d+)", err=True)[1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"a:3|c", ("127.0.0.1", port))

    def kept() -> bool:
        done = run("log", "cat", str(tmp_path), "--json")
        return "statsd.aggregate.a" in done.stdout

    wait_until(kept, timeout=30)
    server.interrupt()
    assert server.end() == 130


def test_statistics_of_peers_are_sent(run: Any) -> None:
    with (
        Peer("shop", streams=[Stream("orders.**")]) as shop,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
    ):
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(20)
        shop.publish("orders.eu", 1)
        to = f"127.0.0.1:{sock.getsockname()[1]}"
        result = run("statsd", "--to", to, "-c", shop.address, "--count", "1", "--quiet")
        assert result.exit_code == 0, result.stderr
        assert b"meshmsg.shop.streams.orders.published:1|c" in sock.recv(65535)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--bind", "nowhere"),
        ("--interval", "0"),
        ("--interval", "soon"),
        ("--to", "127.0.0.1:8125", "--raw"),
        ("--to", "127.0.0.1:8125"),
        ("--overflow", "explode"),
    ],
)
def test_wrong_usage_is_said(run: Any, arguments: tuple[str, ...]) -> None:
    result = run("statsd", *arguments)
    assert result.exit_code == 2
    assert result.stderr
