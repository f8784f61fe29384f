"""`--log-format json`: the library's own messages as objects, from a real process."""

from __future__ import annotations

import json
from typing import Any

from meshmsg import Peer, Stream
from tests.support.waiting import wait_until

PATIENCE_S = 60


def test_a_loss_is_an_object_with_peer_stream_and_position(start: Any) -> None:
    with Peer("shop", streams=Stream("a.**"), mesh="one") as shop:
        other = ("--mesh", "two", "--discovery", "none")
        connect = ("--connect", shop.address, "--name", "desk")
        running = start("--log-format", "json", "sub", "a.**", "--quiet", *connect, *other)
        wait_until(lambda: running.err, PATIENCE_S, "a line about the refusal")
        running.end()
    lines = [json.loads(line) for line in running.err if line.startswith("{")]
    assert lines, running.err
    assert {line["peer"] for line in lines} == {"desk"}
    assert {"time", "level", "logger", "message"} <= lines[0].keys()


def test_another_word_is_wrong_usage(run: Any) -> None:
    assert run("--log-format", "xml", "peers").exit_code == 2
