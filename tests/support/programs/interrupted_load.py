"""The command, hit by Ctrl-C while a module of it is looked for.

python tests/support/programs/interrupted_load.py MODULE ARGUMENT...
"""

from __future__ import annotations

import os
import runpy
import signal
import sys


class Interrupt:
    """Finds nothing, and sends SIGINT for one name."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._module:
            os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    sys.meta_path.insert(0, Interrupt(sys.argv.pop(1)))
    runpy.run_module("meshmsg", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
