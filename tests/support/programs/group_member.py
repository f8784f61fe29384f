"""A program that is a member of a group, and says what it was given before it acknowledges it.

    python tests/support/programs/group_member.py ADDRESS GROUP

Prints the epoch, the number and the key of each event.
"""

from __future__ import annotations

import sys

from meshmsg import Peer


def main() -> None:
    address, group = sys.argv[1:]
    with (
        Peer("apart", connect=address) as peer,
        peer.subscribe("a.**", group=group, order="none", prefetch=50) as events,
    ):
        for event in events:
            print(event.position.epoch, event.position.seq, event.key, flush=True)
            events.ack(event)


if __name__ == "__main__":
    main()
