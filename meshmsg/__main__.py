"""`python -m meshmsg` is the command `meshmsg`, which is not loaded yet when this runs."""

from __future__ import annotations

# What `signal` wraps, and in the interpreter already: `signal` loads `enum` first, which takes
# nearly all of the time in which Ctrl-C would show a traceback of ours.
import _signal  # type: ignore[import-not-found]

TYPE_CHECKING = False  # `typing` would be loaded before the handler stands
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Load the command, which takes a while, and run it.

    There is nothing to close meanwhile: Ctrl-C ends the process, as it ends a program in C.
    """
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # not one that ignores it
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from meshmsg import cli

    cli.main()


if __name__ == "__main__":
    main()
