"""A program that ends without having closed its peers.

    python tests/support/programs/unclosed.py [MESH]

With a mesh, there are two, which find each other in it by zeroconf first.
"""

from __future__ import annotations

import sys

from meshmsg import Peer

#: What is still there when the interpreter ends.
PEERS: list[Peer] = []


def main() -> None:
    if not sys.argv[1:]:
        PEERS.append(Peer("p").open())
        PEERS[0].publish("a.b", 1)
        return
    PEERS.extend(Peer(name, mesh=sys.argv[1], discovery="zeroconf").open() for name in "ab")
    PEERS[0].wait_for_peers(1, timeout=30)


if __name__ == "__main__":
    main()
