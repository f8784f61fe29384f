"""What every verb is wrapped in: an exit status for everything that can happen, no tracebacks."""

from __future__ import annotations

import functools
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import typer

from meshmsg import BindError, ConfigError, EventTooLarge, MeshError, NoStream
from meshmsg.cli import _logs
from meshmsg.cli._values import safe

GOOD = 0
BAD = 1
USAGE = 2
INTERRUPTED = 130  # what shells give a command that Ctrl-C ended
TERMINATED = 143  # and one that was told to end

#: Errors that the caller mends by calling the command otherwise.
WRONG_USAGE = (BindError, ConfigError, EventTooLarge, NoStream)

#: Fields of the library that are options here, under the same name or another.
OPTIONS = {
    "bind": "bind",
    "config": "config",
    "connect": "connect",
    "discovery": "discovery",
    "count": "count",
    "group": "group",
    "interface": "interface",
    "mesh": "mesh",
    "name": "name",
    "overflow": "overflow",
    "publisher": "from",
    "seed": "seed",
    "start": "start",
}

P = ParamSpec("P")


def guarded(verb: Callable[P, int]) -> Callable[P, None]:
    """Turn what a verb returns or raises into an exit status, and errors into one line."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        raise typer.Exit(_status_of(lambda: verb(*args, **kwargs)))

    return run


@contextmanager
def loading() -> Iterator[None]:
    """Let Ctrl-C end the process while modules are loaded, before there is anything to close.

    An extension module may swallow the exception: datasketches prints it, and goes on.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not one that ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _status_of(verb: Callable[[], int]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            status = _complete(verb)
        except KeyboardInterrupt:
            return INTERRUPTED  # warnings about what an interrupted verb left undone are no news
        except SystemExit:  # by SIGTERM: what could not be handed over is said
            status = TERMINATED
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning):
            complain(str(warning.message))
            status = max(status, BAD)
    return status


def _complete(verb: Callable[[], int]) -> int:
    try:
        status = verb()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has what it wanted (`| head`).  What is still buffered goes nowhere, or the
        # interpreter would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return GOOD
    except MeshError as error:
        complain(describe(error))
        return USAGE if isinstance(error, WRONG_USAGE) else BAD
    return status


def describe(error: MeshError) -> str:
    """The error in one line, with the option's name where the library has a field's."""
    field = getattr(error, "field", None)
    text = str(error)
    if field in OPTIONS:
        text = f"--{OPTIONS[field]}{text.removeprefix(field)}"
    return " ".join(text.split())


def complain(text: str) -> None:
    """Say what is wrong, once: the library may have logged the very same already."""
    if not _logs.was_logged(text):
        note(text)


def note(text: str, *, quiet: bool = False) -> None:
    """One line of words on standard error; some of them may be another peer's."""
    if not quiet:
        print(f"meshmsg: {safe(text)}", file=sys.stderr, flush=True)


def usage(field: str, problem: str) -> ConfigError:
    """An error of the caller's, to be raised."""
    return ConfigError(field, problem)
