"""A file system in memory that fails on purpose: for tests of the log, ours and yours.

It gives short writes, full disks, I/O errors and failed syncs by a seed, and it crashes.  After a
power failure, `survivor` is what the disk still has: of each page that was not synced, the old
bytes, the new ones or a mixture torn at any byte; of names that were not synced, some.  A failed
sync drops pages and calls them clean, as Linux does: the next sync succeeds and saves nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from meshmsg.recovery.log.files import Held

PAGE = 4096


class Crashed(BaseException):
    """The machine or the process stopped in the middle of this call."""


@dataclass(slots=True)
class Faults:
    """What goes wrong, as parts of the calls; may be changed at any time."""

    short_write: float = 0.0
    write_error: float = 0.0
    sync_error: float = 0.0
    read_error: float = 0.0
    truncate_error: float = 0.0
    capacity_bytes: int | None = None
    """All files together hold no more."""
    crash_after: int | None = None
    """Calls that change something until the crash."""


class _Inode:
    """A file: what programs see, what the disk has, and which pages differ."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.disk = bytearray()
        self.dirty: set[int] = set()
        self.modified_ns = 0
        self.mapped: dict[int, bytes] | None = None  #: pages as they were last called clean

    def look(self) -> None:
        """Find the pages that were written to through a mapping."""
        if self.mapped is not None:
            for page in range(-(-len(self.content) // PAGE)):
                now = bytes(self.content[page * PAGE : (page + 1) * PAGE])
                if self.mapped.get(page) != now:
                    self.dirty.add(page)

    def clean(self) -> None:
        """Call all pages clean."""
        self.dirty.clear()
        if self.mapped is not None:
            pages = range(-(-len(self.content) // PAGE))
            self.mapped = {p: bytes(self.content[p * PAGE : (p + 1) * PAGE]) for p in pages}

    def touch(self, start: int, stop: int) -> None:
        self.dirty.update(range(start // PAGE, (max(start, stop - 1)) // PAGE + 1))

    def save(self, page: int, cut: int = PAGE) -> None:
        """Bring the first `cut` bytes of a page to the disk."""
        start = page * PAGE
        new = self.content[start : start + cut]
        if len(self.disk) < start + len(new):
            self.disk.extend(bytes(start + len(new) - len(self.disk)))
        self.disk[start : start + len(new)] = new

    def resize_disk(self, size: int) -> None:
        del self.disk[size:]
        self.disk.extend(bytes(size - len(self.disk)))


class FaultyFile:
    """An open file of `FaultyFiles`."""

    def __init__(self, files: FaultyFiles, inode: _Inode, lock: str | None = None) -> None:
        self._files = files
        self._inode = inode
        self._lock = lock

    def write_at(self, parts: Sequence[bytes], offset: int) -> int:
        """See `File`."""
        files, faults, rng = self._files, self._files.faults, self._files.rng
        data = b"".join(parts)
        if files.chance(faults.write_error):
            raise OSError(errno.EIO, "Input/output error")
        if len(data) > 1 and files.chance(faults.short_write):
            data = data[: rng.randrange(1, len(data))]
        if faults.capacity_bytes is not None:
            grows = max(0, offset + len(data) - len(self._inode.content))
            room = max(0, faults.capacity_bytes - files.used_bytes())
            if grows > room:
                data = data[: max(0, len(data) - (grows - room))]
                if not data:
                    raise OSError(errno.ENOSPC, "No space left on device")
        if files.is_crash():
            self._put(data[: rng.randrange(len(data) + 1)], offset)
            raise Crashed
        self._put(data, offset)
        return len(data)

    def _put(self, data: bytes, offset: int) -> None:
        content = self._inode.content
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        self._inode.touch(offset, offset + len(data))
        self._inode.modified_ns = self._files.now_ns

    def read_at(self, size: int, offset: int) -> bytes:
        """See `File`."""
        if self._files.chance(self._files.faults.read_error):
            raise OSError(errno.EIO, "Input/output error")
        return bytes(self._inode.content[offset : offset + size])

    def allocate(self, offset: int, size: int) -> None:
        """See `File`."""
        files, content = self._files, self._inode.content
        grows = max(0, offset + size - len(content))
        limit = files.faults.capacity_bytes
        if limit is not None and files.used_bytes() + grows > limit:
            raise OSError(errno.ENOSPC, "No space left on device")
        files.step()
        content.extend(bytes(grows))

    def map(self, size: int) -> memoryview:
        """See `File`."""
        self._files.step()
        self._inode.mapped = {}
        return memoryview(self._inode.content)[:size]

    def truncate(self, size: int) -> None:
        """See `File`."""
        if self._files.chance(self._files.faults.truncate_error):
            raise OSError(errno.EIO, "Input/output error")
        self._files.step()
        content = self._inode.content
        del content[size:]
        content.extend(bytes(size - len(content)))
        self._inode.touch(size, size)

    def sync(self) -> None:
        """See `File`."""
        files, inode = self._files, self._inode
        inode.look()
        if files.chance(files.faults.sync_error):
            for page in sorted(inode.dirty):
                if files.rng.random() < 0.5:
                    inode.save(page)
            inode.clean()  # and the rest is lost, although it is called clean
            raise OSError(errno.EIO, "Input/output error")
        files.step()
        for page in inode.dirty:
            inode.save(page)
        inode.resize_disk(len(inode.content))
        inode.clean()

    def size(self) -> int:
        """See `File`."""
        return len(self._inode.content)

    def close(self) -> None:
        """See `File`."""
        if self._lock is not None:
            self._files.locks.discard(self._lock)
            self._lock = None


class FaultyFiles:
    """Files in memory, with faults; see `Files`."""

    def __init__(self, rng: Random, faults: Faults | None = None) -> None:
        self.rng = rng
        self.faults = faults or Faults()
        self.calls = 0  #: calls so far that change something
        self.now_ns = 0  #: the time that files get when they are written
        self.locks: set[str] = set()
        self._names: dict[str, _Inode] = {}
        self._disk_names: dict[str, _Inode] = {}
        self._pending: list[dict[str, _Inode | None]] = []

    # --- faults ---

    def chance(self, part: float) -> bool:
        """Whether something with this chance happens; draws nothing where it cannot."""
        return part > 0 and self.rng.random() < part

    def is_crash(self) -> bool:
        """Count a call; whether it is the one that crashes."""
        self.calls += 1
        if self.faults.crash_after is None:
            return False
        self.faults.crash_after -= 1
        return self.faults.crash_after < 0

    def step(self) -> None:
        """Count a call; raises `Crashed` if it is its turn."""
        if self.is_crash():
            raise Crashed

    def used_bytes(self) -> int:
        """Bytes of all files; any thread may write meanwhile."""
        return sum(len(inode.content) for inode in list(self._names.values()))

    def survivor(self, *, power: bool = True) -> FaultyFiles:
        """What is there after a crash: of the machine (`power`), or of the process only."""
        after = FaultyFiles(self.rng)
        after.now_ns = self.now_ns
        names = dict(self._disk_names) if power else dict(self._names)
        if power:
            kept = self.rng.random()
            for change in self._pending:
                if self.rng.random() < kept:
                    _apply(names, change)
        for path, inode in names.items():
            copy = after._names[path] = after._disk_names[path] = _Inode()
            copy.content = self._remains(inode) if power else bytearray(inode.content)
            copy.disk = bytearray(copy.content) if power else bytearray(inode.disk)
            copy.dirty = set() if power else set(inode.dirty)
            copy.modified_ns = inode.modified_ns
        if not power:
            after._disk_names = {
                path: after._names.get(path, inode) for path, inode in self._disk_names.items()
            }
            after._pending = [
                {path: None if i is None else after._names.get(path, i) for path, i in c.items()}
                for c in self._pending
            ]
        return after

    def _remains(self, inode: _Inode) -> bytearray:
        rng = self.rng
        inode.look()
        kept = rng.choice((0.0, 0.5, 0.9, 1.0))
        low, high = sorted((len(inode.disk), len(inode.content)))
        size = rng.choice((low, high, rng.randint(low, high)))
        for page in inode.dirty:
            if rng.random() < kept:
                inode.save(page, rng.choice((PAGE, PAGE, rng.randrange(PAGE))))
        image = inode.disk[:size]
        image.extend(bytes(size - len(image)))
        return image

    def paths(self) -> list[str]:
        """All files."""
        return sorted(self._names)

    def content(self, path: str) -> bytes:
        """What a file has now."""
        return bytes(self._names[path].content)

    def flip(self, path: str, offset: int, bits: int = 1) -> None:
        """Damage a byte, on the disk and in memory."""
        inode = self._names[path]
        inode.content[offset] ^= bits
        if offset < len(inode.disk):
            inode.disk[offset] ^= bits

    # --- files ---

    def open(self, path: str, *, write: bool = False, create: bool = False) -> FaultyFile:
        """See `Files`."""
        if create:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, "File exists", path)
            self.step()
            self._change({path: _Inode()})
        return FaultyFile(self, self._inode(path))

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return inode

    def _change(self, change: dict[str, _Inode | None]) -> None:
        _apply(self._names, change)
        self._pending.append(change)

    def names(self, folder: str) -> dict[str, int]:
        """See `Files`."""
        found = {}
        for path, inode in self._names.items():
            parent, _, name = path.rpartition("/")
            if parent == folder:
                found[name] = len(inode.content)
        return found

    def folders(self, folder: str) -> list[str]:
        """See `Files`."""
        below = [path[len(folder) + 1 :] for path in self._names if path.startswith(f"{folder}/")]
        return sorted({path.partition("/")[0] for path in below if "/" in path})

    def make_folder(self, path: str) -> None:
        """See `Files`."""

    def replace(self, source: str, target: str) -> None:
        """See `Files`."""
        inode = self._inode(source)
        self.step()
        self._change({source: None, target: inode})

    def remove(self, path: str) -> None:
        """See `Files`."""
        if path in self._names:
            self.step()
            self._change({path: None})

    def sync_folder(self, folder: str) -> None:
        """See `Files`."""
        if self.chance(self.faults.sync_error):
            raise OSError(errno.EIO, "Input/output error")
        self.step()
        rest = []
        for change in self._pending:
            if all(path.rpartition("/")[0] == folder for path in change):
                _apply(self._disk_names, change)
            else:
                rest.append(change)
        self._pending = rest

    def lock(self, path: str) -> FaultyFile:
        """See `Files`."""
        if path in self.locks:
            raise Held(1)
        self.locks.add(path)
        if path not in self._names:
            self._change({path: _Inode()})
        return FaultyFile(self, self._names[path], path)

    def modified_ns(self, path: str) -> int:
        """See `Files`."""
        return self._inode(path).modified_ns

    def random_bytes(self, count: int) -> bytes:
        """See `Files`."""
        return self.rng.randbytes(count)


def _apply(names: dict[str, _Inode], change: dict[str, _Inode | None]) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
