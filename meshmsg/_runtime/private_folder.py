"""Private folders: folders of this user that nobody else may change, in a place that users share.

In a folder for temporary files a name proves nothing: another user may have made it, also as a link
to a folder of ours.  A folder is ours if its descriptor, which was opened without following a link,
says so; further work goes by this descriptor.  A process locks the folders that it made, so that
neither another start of it nor a program that tidies up temporary files removes them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
import tempfile
from collections.abc import Callable
from typing import Self

log = logging.getLogger("meshmsg.peer")

MODE = 0o700
#: Rights of group and others: all of them, and those that change a folder.
ANY = 0o077
WRITE = 0o022
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFolder:
    """An open folder of ours."""

    def __init__(self, name: str, *, dir_fd: int | None = None, others: int = ANY) -> None:
        """Open a folder on which others have none of these rights; raises `OSError`."""
        self.path = name
        self.fd = os.open(name, _FLAGS, dir_fd=dir_fd)
        found = os.fstat(self.fd)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & others:
            self.close()
            problem = "belongs to another user, or others have rights on it"
            raise PermissionError(errno.EPERM, problem, name)

    @classmethod
    def make(cls, prefix: str, parent: str | None = None) -> Self:
        """Make a folder of a new name and lock it; raises `OSError`."""
        while True:
            path = tempfile.mkdtemp(prefix=prefix, dir=parent)
            with contextlib.suppress(FileNotFoundError):  # removed as a stray before it was locked
                folder = cls(path)
                folder.lock(wait=True)
                os.lstat(path)
                return folder

    @classmethod
    def ensure(cls, name: str, *, dir_fd: int | None = None, others: int = WRITE) -> Self:
        """Open the folder of this name, and make it where there is none; raises `OSError`."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, MODE, dir_fd=dir_fd)
        return cls(name, dir_fd=dir_fd, others=others)

    def lock(self, *, wait: bool = False) -> bool:
        """Lock the folder until it is closed; return False if another process has it."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:  # also where the file system knows no locks: nobody else gets one there
            return False
        return True

    def close(self) -> None:
        """Close the descriptor, which frees the lock."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_strays(parent: str, names: re.Pattern[str], empty: Callable[[int], None]) -> None:
    """Remove private folders of these names that no process has locked.

    `empty` gets the descriptor of one and removes what it knows; a folder goes that is empty then.
    """
    try:
        found = [name for name in os.listdir(parent) if names.fullmatch(name)]
    except OSError:
        return
    for name in found:
        path = os.path.join(parent, name)
        with contextlib.suppress(OSError), PrivateFolder(path) as folder:
            if folder.lock():
                empty(folder.fd)
                os.rmdir(path)
                log.info("removed %s, which a process left behind", path)
