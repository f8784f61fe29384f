"""The file layer of the durable log: the few things it asks of an operating system.

Belongs here: the `Files` interface, the real one, and writing a small file as a whole.  Does not
belong here: what is in the files.  Everything above takes a `Files`, so that a test can put one
below it that fails, fills up or crashes (`faults`).

Reading is by `pread`, not by mmap.  Measured: copying frames of 128 KiB out of the page cache, 7.4
against 6.4 GB/s; and a bad sector or a file cut by somebody else is an `OSError` or a short read,
where a mapping would end the process with SIGBUS.  The tail is the exception: it is written through
a mapping (`tail`), and read like all else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Sequence, Set
from typing import Protocol
from weakref import WeakSet

from meshmsg import _platform

#: A full sync reaches the disk's own cache on macOS only when asked for like this.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
PID_BYTES_MAX = 20


class Held(Exception):
    """A lock is held by another process, whose number is `pid` (0 where it is not known)."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = pid


class File(Protocol):
    """An open file.  Every method may raise `OSError`."""

    def write_at(self, parts: Sequence[bytes], offset: int) -> int:
        """Write the parts one after the other; returns how many bytes were, maybe too few."""

    def read_at(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""

    def allocate(self, offset: int, size: int) -> None:
        """Have room for these bytes; they read as zeros.  Nothing where that is not known."""

    def map(self, size: int) -> memoryview:
        """The first bytes as memory: what is written there is in the file."""

    def truncate(self, size: int) -> None:
        """Cut or extend."""

    def sync(self) -> None:
        """Return when all that was written is on the disk."""

    def size(self) -> int:
        """Bytes from the start to the end."""

    def close(self) -> None:
        """Let go; what a lock held is free."""


class Files(Protocol):
    """A file system.  Every method may raise `OSError`."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file; `create` refuses one that is there."""

    def names(self, folder: str) -> dict[str, int]:
        """Names and sizes of the files in a folder; empty where there is no such folder."""

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, as far as they are missing; they will stay."""

    def replace(self, source: str, target: str) -> None:
        """Give a file another name, in place of what has it."""

    def remove(self, path: str) -> None:
        """Remove a file; nothing if it is not there."""

    def sync_folder(self, folder: str) -> None:
        """Return when the names in a folder are on the disk."""

    def lock(self, path: str) -> File:
        """Hold the lock of this path until the file is closed; raises `Held`."""

    def modified_ns(self, path: str) -> int:
        """When a file was written last, in ns since 1970."""

    def random_bytes(self, count: int) -> bytes:
        """Bytes that nobody can guess."""


class RealFile:
    """A file of the operating system."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int, *, writes: bool = False) -> None:
        self._fd = fd
        if writes:
            _written.add(self)

    def write_at(self, parts: Sequence[bytes], offset: int) -> int:
        """See `File`."""
        return os.pwritev(self._fd, parts, offset)

    def read_at(self, size: int, offset: int) -> bytes:
        """See `File`."""
        return os.pread(self._fd, size, offset)

    def allocate(self, offset: int, size: int) -> None:
        """See `File`."""
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, offset, size)
            except OSError as error:
                if error.errno not in _NO_ALLOCATION:
                    raise

    def map(self, size: int) -> memoryview:
        """See `File`."""
        return memoryview(mmap.mmap(self._fd, size))

    def truncate(self, size: int) -> None:
        """See `File`."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """See `File`."""
        _sync(self._fd)

    def size(self) -> int:
        """See `File`."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """See `File`."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


#: Open files of this process that it may write to, and its locks.
_written: WeakSet[RealFile] = WeakSet()


def _after_fork() -> None:
    """In a forked child: its parent writes these files, and nobody else.

    A lock is the file's, not the process's: a child that kept its copy would hold the lock for as
    long as it lives, after its parent has died.
    """
    for file in list(_written):
        with contextlib.suppress(OSError):
            file.close()


os.register_at_fork(after_in_child=_after_fork)


def _sync(fd: int) -> None:
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP):
                raise
    # Without the times of the file, which nobody needs: a write less.
    getattr(os, "fdatasync", os.fsync)(fd)


def _mode(path: str, *, folder: bool = False) -> int:
    """Rights of a new file or folder: the owner's alone.

    In a folder with the set-group-ID bit the group may read as well: this is how a log is shared
    with readers of another user.
    """
    shared = os.stat(os.path.dirname(os.path.abspath(path))).st_mode & stat.S_ISGID
    if folder:
        return 0o750 if shared else 0o700
    return 0o640 if shared else 0o600


class RealFiles:
    """The file system of the operating system.  What it makes is the owner's: see `_mode`."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """See `Files`."""
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        fd = os.open(path, flags | os.O_CLOEXEC, _mode(path) if create else 0)
        return RealFile(fd, writes=write or create)

    def names(self, folder: str) -> dict[str, int]:
        """See `Files`."""
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode):
                        found[entry.name] = status.st_size
        return found

    def folders(self, folder: str) -> list[str]:
        """See `Files`."""
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def make_folder(self, path: str) -> None:
        """See `Files`."""
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(os.path.abspath(path))
        for made in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(made, _mode(made, folder=True))
            self.sync_folder(os.path.dirname(os.path.abspath(made)))

    def replace(self, source: str, target: str) -> None:
        """See `Files`."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """See `Files`."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_folder(self, folder: str) -> None:
        """See `Files`."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> File:
        """See `Files`."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _mode(path))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(fd, PID_BYTES_MAX, 0)
            os.close(fd)
            pid = int(text) if text.strip().isdigit() else 0
            living = processes_with({os.path.realpath(path)})
            # A child that was forked in C keeps the lock of a parent that has died.
            raise Held(pid if pid in living else next(iter(living), pid)) from None
        except OSError:
            os.close(fd)
            raise
        held = RealFile(fd, writes=True)
        with contextlib.suppress(OSError):  # a full disk: the lock is what counts
            held.truncate(0)
            held.write_at([f"{os.getpid()}\n".encode()], 0)
        return held

    def modified_ns(self, path: str) -> int:
        """See `Files`."""
        return os.stat(path).st_mtime_ns

    def random_bytes(self, count: int) -> bytes:
        """See `Files`."""
        return os.urandom(count)


REAL = RealFiles()


def files_here() -> Files:
    """The files of the current platform: those of the system, or a simulated disk."""
    return _platform.current().files or REAL


def processes_with(targets: Set[str]) -> list[int]:
    """Processes that have one of these open, as `/proc` names them; none where it does not tell."""
    names = os.listdir("/proc") if os.path.isdir("/proc/self/fd") else []
    return sorted(int(name) for name in names if name.isdecimal() and targets & _opened(name))


def _opened(pid: str) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):  # the process has ended, or is another user's
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def write_all(file: File, parts: Sequence[bytes], offset: int) -> None:
    """Write all of it, however little a single call takes; raises `OSError`."""
    done = file.write_at(parts, offset)
    size = sum(map(len, parts))
    if done == size:
        return
    rest = memoryview(b"".join(parts))
    while done < size:
        written = file.write_at([bytes(rest[done:])], offset + done)
        if written <= 0:
            raise OSError(errno.ENOSPC, "nothing more could be written")
        done += written


def read_small(files: Files, path: str, bytes_max: int) -> bytes | None:
    """A whole small file; `None` if there is none; raises `OSError`, also if it is too large."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        data = file.read_at(bytes_max + 1, 0)
    finally:
        file.close()
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"more than {bytes_max:,} bytes", path)
    return data


def replace_small(files: Files, folder: str, name: str, data: bytes) -> None:
    """Write a whole small file: after a crash the old one or the new one is there, never a part."""
    path, fresh = f"{folder}/{name}", f"{folder}/{name}.new"
    files.remove(fresh)
    file = files.open(fresh, create=True)
    try:
        write_all(file, [data], 0)
        file.sync()
    finally:
        file.close()
    files.replace(fresh, path)
    files.sync_folder(folder)
