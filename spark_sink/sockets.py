"""Where a local Spark has the Unix sockets to its Python: a folder that nobody else may look into.

They ask for no password.  What a process that was killed has left is removed by the next.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import shutil
import tempfile

from meshmsg._runtime.private_folder import PrivateFolder, remove_strays

log = logging.getLogger("meshmsg.spark_sink")

PREFIX = "meshmsg-spark-"
_NAMES = re.compile(PREFIX + r"[0-9]{1,10}-.+")
#: The longest path of a socket, on the system where it is shortest, and what Spark names one.
PATH_BYTES_MAX = 103
NAME_BYTES = len("/.00000000-0000-0000-0000-000000000000.sock")
#: Where it is short enough, if the usual place is not.
SHORT = "/tmp"


@functools.cache
def socket_folder() -> str | None:
    """This process's folder; `None` if there is no place for one, and it must do without."""
    for parent in dict.fromkeys((_usual(), SHORT)):
        if parent is not None and (made := _make(parent)) is not None:
            return made
    log.warning("no folder for sockets in %s or %s: batches take longer", _usual(), SHORT)
    return None


def _usual() -> str | None:
    try:
        return tempfile.gettempdir()
    except OSError:  # none can be written
        return None


def _make(parent: str) -> str | None:
    remove_strays(parent, _NAMES, _empty)
    try:
        made = PrivateFolder.make(f"{PREFIX}{os.getpid()}-", parent)
    except OSError:
        return None
    if len(os.fsencode(made.path)) + NAME_BYTES > PATH_BYTES_MAX:
        os.rmdir(made.path)
        made.close()
        return None
    atexit.register(_remove, made.path, os.getpid())
    return made.path  # its descriptor stays open, and so it stays locked, until the process ends


def _empty(folder: int) -> None:
    for name in os.listdir(folder):
        os.unlink(name, dir_fd=folder)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked
        shutil.rmtree(folder, ignore_errors=True)


def remove_sockets() -> None:
    """For a process that ends without a word; after this there is no new session."""
    if socket_folder.cache_info().currsize and (made := socket_folder()) is not None:
        _remove(made, os.getpid())
