"""A program that publishes by the path for Pythons whose bytecode gives no cover.

MESHMSG_PURE=1 python tests/support/programs/locked_numbers.py
"""

from __future__ import annotations

from meshmsg import Peer, Stream
from meshmsg._wire.frame import FrameBuilder


def main() -> None:
    FrameBuilder.NEEDS_LOCK = True
    with Peer("pub", streams=[Stream("a.**")]) as pub:
        assert pub._open_node().publisher.publish.__name__ == "_publish_locked"
        assert [pub.publish("a.b", n).seq for n in range(1000)] == list(range(1000))
        last = pub.publish_many("a.b", [1, 2, 3])
        assert last is not None
        assert last.seq == 1002
        assert pub.publish("a.b", 1, key="k").seq == 1003


if __name__ == "__main__":
    main()
