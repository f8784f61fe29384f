"""A program whose peers meet without zeroconf: it fails if that is loaded.

python tests/support/programs/without_zeroconf.py
"""

from __future__ import annotations

import sys

from meshmsg import Peer


def main() -> None:
    with Peer("a", discovery="none") as a, Peer("b", connect=a.address):
        pass
    assert {"zeroconf", "asyncio"}.isdisjoint(sys.modules)


if __name__ == "__main__":
    main()
