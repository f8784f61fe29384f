"""A program that tells the scope of its folder, and with an argument that of a child of it, too.

python tests/support/programs/folder_scope.py [again]
"""

from __future__ import annotations

import subprocess
import sys

from meshmsg.transports.discovery.addresses import folder_scope


def main() -> None:
    print(folder_scope(), flush=True)
    if sys.argv[1:]:
        subprocess.run([sys.executable, __file__], check=True)


if __name__ == "__main__":
    main()
