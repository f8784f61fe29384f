"""For tests and demonstrations: lose messages on purpose, the same ones each time.

>>> with lose_frames(peer, ratio=0.1, seed=7) as lossy:                       # doctest: +SKIP
...     peer.publish_many("quotes.AAPL", quotes)
>>> lossy.dropped                                                             # doctest: +SKIP
12
"""

from __future__ import annotations

import math
import os
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshmsg._model.errors import ConfigError
from meshmsg._model.multicast_config import split_group
from meshmsg._peer.peer import PeerBase, node_of
from meshmsg._wire.frame import FRAME_MAGIC, PREFIX_BYTES
from meshmsg._wire.packet import DATA, REPAIR, packet_kind
from meshmsg.testing.memory_mesh import MemoryMesh

__all__ = [
    "LossyLink",
    "LossyPath",
    "MemoryMesh",
    "lose_frames",
    "lose_messages",
    "lose_packets",
    "own_mesh",
]


@contextmanager
def own_mesh() -> Iterator[str]:
    """While in the block, peers that name no mesh are in one that nobody else has.

    Those of this process, and of the processes that it starts meanwhile.  Gives its name.
    """
    before = os.environ.get("MESHMSG_MESH")
    mesh = os.environ["MESHMSG_MESH"] = f"test-{secrets.token_hex(8)}"
    try:
        yield mesh
    finally:
        if before is None:
            del os.environ["MESHMSG_MESH"]
        else:
            os.environ["MESHMSG_MESH"] = before


class LossyLink:
    """Decides by a seed which messages of the data path are lost."""

    def __init__(self, ratio: float, seed: int, *, heartbeats: bool = False) -> None:
        if not 0 <= ratio <= 1:
            raise ConfigError("ratio", f"{ratio!r} is not between 0 and 1")
        self.ratio = ratio
        self.heartbeats = heartbeats  #: lose heartbeats too, not only data
        self.dropped = 0  #: messages lost so far
        self.passed = 0  #: messages let through so far
        self._random = random.Random(seed)

    def __call__(self, message: bytes) -> bool:
        """Whether this message is lost."""
        is_data = message[PREFIX_BYTES : PREFIX_BYTES + 4] == FRAME_MAGIC
        lost = (is_data or self.heartbeats) and self._random.random() < self.ratio
        self.dropped += lost
        self.passed += not lost
        return lost


@contextmanager
def lose_frames(
    peer: PeerBase, ratio: float = 0.1, seed: int = 0, *, heartbeats: bool = False
) -> Iterator[LossyLink]:
    """While in the block, lose this part of the frames that the peer publishes over ZeroMQ."""
    with lose_messages(peer, LossyLink(ratio, seed, heartbeats=heartbeats)) as link:
        yield link


@contextmanager
def lose_messages(peer: PeerBase, link: LossyLink | Callable[[bytes], bool]) -> Iterator[LossyLink]:
    """While in the block, lose the messages of the data path for which `link` gives true."""
    node = node_of(peer)
    node.publisher.set_fault(link)
    try:
        yield link  # type: ignore[misc]
    finally:
        if not node.stopped.is_set():
            node.publisher.set_fault(None)


class LossyPath:
    """Decides by a seed which multicast packets are lost, of all kinds."""

    def __init__(self, ratio: float, seed: int) -> None:
        if not 0 <= ratio <= 1:
            raise ConfigError("ratio", f"{ratio!r} is not between 0 and 1")
        self.ratio = ratio
        self.dropped = 0  #: packets lost so far
        self.data_dropped = 0  #: those of them that carried events, for the first time or again
        self.passed = 0  #: packets let through so far
        self._random = random.Random(seed)
        self._left = self._draw()  # packets until the next one is lost

    def __call__(self, packet: bytes) -> bool:
        """Whether this packet is lost."""
        return bool(self.lost_of(packet, max(1, len(packet))))

    def _draw(self) -> int:
        """How many pass between two that are lost: one draw a loss, and not one a packet."""
        if not 0 < self.ratio < 1:
            return 0 if self.ratio else sys.maxsize
        return int(math.log1p(-self._random.random()) / math.log1p(-self.ratio))

    def spares(self, count: int) -> bool:
        """Whether so many packets all pass; if not, nothing is said of them yet.

        Most bursts lose nothing, and to find that out should not cost much.
        """
        if self._left < count:
            return False
        self._left -= count
        self.passed += count
        return True

    def lost_of(self, data: bytes, packet_bytes: int) -> list[int]:
        """Where packets begin that are lost, of many one behind the other."""
        count = -(-len(data) // packet_bytes) or 1
        left = self._left
        lost = []
        while left < count:
            lost.append(left * packet_bytes)
            left += 1 + self._draw()
        self._left = left - count
        self.dropped += len(lost)
        self.passed += count - len(lost)
        for at in lost:
            self.data_dropped += packet_kind(data[at : at + packet_bytes]) in (DATA, REPAIR)
        return lost


@contextmanager
def lose_packets(
    peer: PeerBase, ratio: float = 0.1, seed: int = 0, *, line: str | None = None
) -> Iterator[LossyPath]:
    """While in the block, lose this part of the multicast packets, on one line if that is named.

    At a publisher, those that it sends: no receiver gets them.  At a subscriber, those that come
    in, for each of its subscriptions that is open now: the others are not affected.  A line is
    named by its group and port, `"239.255.7.7:30001"`.
    """
    path = LossyPath(ratio, seed)
    at = None if line is None else split_group("line", line)
    node = node_of(peer)
    intakes = list(node.intakes.values())
    node.publisher.set_packet_fault(path, at)
    for intake in intakes:
        intake.tuner.set_fault(path, at)
    try:
        yield path
    finally:
        if not node.stopped.is_set():
            node.publisher.set_packet_fault(None)
            for intake in intakes:
                intake.tuner.set_fault(None)
