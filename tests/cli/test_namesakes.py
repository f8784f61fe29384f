"""Two peers of one name, as `meshmsg peers` and `meshmsg doctor` show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from meshmsg import Peer, Stream
from tests.support.waiting import wait_until


def test_peers_and_doctor_show_a_name_that_two_peers_have(run: Callable[..., Any]) -> None:
    with (
        Peer("twin", streams=[Stream("a.**")]) as one,
        Peer("twin", streams=[Stream("a.**")]) as two,
        Peer("sub", connect=[one.address]) as sub,
        sub.subscribe("a.**"),
    ):
        one.wait_for_subscribers("a.b", timeout=30)
        sub._open_node().call(lambda: sub._open_node().links.dial(two.address))
        wait_until(lambda: two.stats()["name_in_use"])
        told = f"another peer of its name is at {one.address}"
        shown = run("peers", "--connect", two.address)
        assert told in " ".join(shown.stdout.split())
        doctor = run("doctor", "--connect", two.address, "--discovery", "none", "--json")
        found = [json.loads(line) for line in doctor.stdout.splitlines()]
        (finding,) = [x for x in found if told in x["found"]]
        assert (finding["check"], finding["status"]) == ("name", "fail")
        assert doctor.exit_code == 1
