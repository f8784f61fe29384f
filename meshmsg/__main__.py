"""`python -m meshmsg` is the command `meshmsg`, which is not loaded yet when this runs."""

from __future__ import annotations

import signal

TYPE_CHECKING = False  # `typing` would be loaded before the handler stands
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Load the command, which takes a while, and run it.

    There is nothing to close meanwhile: Ctrl-C ends the process, as it ends a program in C.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not one that ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from meshmsg import cli

    cli.main()


if __name__ == "__main__":
    main()
