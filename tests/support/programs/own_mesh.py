"""The fixture of docs/testing.md in a program that runs beside others like it.

    python tests/support/programs/own_mesh.py NAME

Prints `ready` when it knows of the others, publishes when its input says so, and when it says so
again prints all that came.
"""

from __future__ import annotations

import json
import sys

from meshmsg import Peer
from meshmsg.testing import own_mesh


def main() -> None:
    name = sys.argv[1]
    with (
        own_mesh(),
        Peer(f"sender-{name}") as sender,
        Peer(f"receiver-{name}", connect=sender.address) as receiver,
        receiver.subscribe("**") as events,
    ):
        sender.wait_for_subscribers("numbers", timeout=30)
        resolver = sender._open_node().finder._scout
        assert resolver is not None
        while len({found.records.get("mesh") for found in resolver.known()}) < 3:
            events.get(timeout=0.05)
        print("ready", flush=True)
        sys.stdin.readline()
        sender.publish_many("numbers", [name] * 50)
        sender.flush(timeout=30)
        got = [event.data for event in events.get_many(1000, timeout=30)]
        sys.stdin.readline()
        got += [event.data for event in events.get_many(1000, timeout=0)]
        print(json.dumps(got), flush=True)


if __name__ == "__main__":
    main()
