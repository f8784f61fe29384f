"""`meshmsg web`: a peer that only looks on, and serves the page."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from meshmsg import Peer, Stream

PATIENCE_S = 60


def test_it_sees_the_mesh_and_does_nothing_in_it(start: Any) -> None:
    with (
        Peer("shop", streams=Stream("s.**")) as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("s.**"),
    ):
        running = start("web", "--connect", shop.address, "--name", "eye")
        url = running.wait_for_line(r"(http://127.0.0.1:\d+/)")[1]
        page = urllib.request.Request(url, headers={"Accept": "text/html"})
        with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
            assert b"page.js" in answer.read()
        with urllib.request.urlopen(f"{url}events", timeout=PATIENCE_S) as answer:
            for line in answer:
                view = json.loads(line[6:])["view"] if line.startswith(b"data: ") else None
                if view and [flow["subscriber"] for flow in view["flows"]] == ["desk"]:
                    break
        (eye,) = [peer for peer in view["peers"] if peer["name"] == "eye"]
        assert (eye["is_self"], eye["roles"]) == (True, [])
        assert [stream["stream"] for stream in view["streams"]] == ["shop/s.**"]
        running.interrupt()
        assert running.end() == 130


def test_beyond_loopback_without_a_token_is_refused(run: Any) -> None:
    done = run("web", "--connect", "tcp://127.0.0.1:1", "--host", "0.0.0.0")
    assert done.exit_code == 2
    assert "MESHMSG_MONITOR_TOKEN_FILE" in done.stderr
