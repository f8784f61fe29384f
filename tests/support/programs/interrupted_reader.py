"""A program that reads until Ctrl-C, which nothing in it catches.

    python tests/support/programs/interrupted_reader.py sync|async

Prints `ready` when it reads.
"""

from __future__ import annotations

import asyncio
import sys

from meshmsg import AsyncPeer, Peer, Stream

STREAM = Stream("a.**")


def read() -> None:
    with Peer("p", streams=[STREAM]) as peer, peer.subscribe("b.**") as events:
        print("ready", flush=True)
        for _ in events:
            pass


async def read_in_a_loop() -> None:
    async with AsyncPeer("p", streams=[STREAM]) as peer, peer.subscribe("b.**") as events:
        print("ready", flush=True)
        async for _ in events:
            pass


def main() -> None:
    if sys.argv[1] == "sync":
        read()
    else:
        asyncio.run(read_in_a_loop())


if __name__ == "__main__":
    main()
