"""Where a local Spark has the Unix sockets to its Python: a folder that nobody else may look into.

They ask for no password.  The process locks its folder: neither another start of this, nor who
tidies up the folder for temporary files, removes it then.  What one that was killed has left is
removed by the next.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import logging
import os
import re
import shutil
import tempfile

log = logging.getLogger("meshmsg.spark_sink")

PREFIX = "meshmsg-spark-"
_OURS = re.compile(PREFIX + r"(?P<pid>[0-9]{1,10})-.+")
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
    _remove_strays(parent)
    made = ""
    try:
        made = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
        if len(os.fsencode(made)) + NAME_BYTES <= PATH_BYTES_MAX and _lock(made) is not None:
            atexit.register(_remove, made, os.getpid())
            return made
    except OSError:
        return None
    os.rmdir(made)
    return None


def _lock(folder: str) -> int | None:
    """An open file that holds the folder while this process lives; `None` if another has it."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        return None
    return found


def _remove_strays(parent: str) -> None:
    """Remove folders of our own whose process is gone, also by what other containers see."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in names:
        if (found := _OURS.fullmatch(name)) is None or _is_alive(int(found["pid"])):
            continue
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError):
            if os.lstat(path).st_uid == os.getuid() and (lock := _lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
                log.info("removed %s, which a process left behind", path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in a child that was forked
        shutil.rmtree(folder, ignore_errors=True)


def remove_sockets() -> None:
    """For a process that ends without a word; after this there is no new session."""
    if socket_folder.cache_info().currsize and (made := socket_folder()) is not None:
        _remove(made, os.getpid())
