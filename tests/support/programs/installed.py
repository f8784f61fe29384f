"""Tell which meshmsg this Python has, and send one event with it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import meshmsg
from meshmsg import _native


def main() -> None:
    modules = json.load(sys.stdin)
    for name in modules:
        importlib.import_module(name)
    with (
        meshmsg.Peer("greeter") as greeter,
        meshmsg.Peer("listener", connect=greeter.address) as listener,
        listener.subscribe("greetings.**") as events,
    ):
        greeter.wait_for_subscribers("greetings.world", count=1, timeout=30)
        greeter.publish("greetings.world", {"text": "hello"})
        event = events.get(timeout=30)
    found = {
        "folder": str(Path(meshmsg.__file__).parent),
        "compiled": _native.COMPILED,
        "data": event.data if event else None,
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
