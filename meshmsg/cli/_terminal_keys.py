"""Keys as they are pressed at a terminal, by name, without waiting for the end of a line."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[H": "home",
    "\x1b[Z": "backtab",
    "\x1b": "esc",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x03": "ctrl-c",
}
#: What is read at once; a paste that is longer comes in pieces.
READ_BYTES = 256


@contextmanager
def keys_at_once() -> Iterator[None]:
    """Have the terminal hand over each key as it is pressed, and put it right afterwards."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def pressed(wait_s: float) -> list[str]:
    """The keys that were pressed, waiting so long for the first; `ctrl-c` when input has ended."""
    fd = sys.stdin.fileno()
    if not select.select([fd], [], [], wait_s)[0]:
        return []
    data = os.read(fd, READ_BYTES)
    return keys_of(data.decode("utf-8", "replace")) if data else ["ctrl-c"]


def keys_of(text: str) -> list[str]:
    """What was read as names of keys; escape sequences that mean nothing here are passed over.

    >>> keys_of("q\\x1b[A\\x1b")
    ['q', 'up', 'esc']
    """
    found, at = [], 0
    while at < len(text):
        length = _length(text, at)
        key = text[at : at + length]
        if key in NAMES:
            found.append(NAMES[key])
        elif length == 1 and key.isprintable():
            found.append(key)
        at += length
    return found


def _length(text: str, at: int) -> int:
    """How many characters the key that begins there takes."""
    if text[at] != "\x1b" or at + 1 == len(text) or text[at + 1] not in "[O":
        return 1
    end = at + 2
    while end < len(text) and not "@" <= text[end] <= "~":
        end += 1
    return min(end + 1, len(text)) - at
