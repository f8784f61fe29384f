"""Durable logs without a peer: read and verify them, see who holds them, let go of who left.

>>> from meshmsg.logs import LogReader, find_logs
>>> for folder in find_logs("./data"):                                         # doctest: +SKIP
...     with LogReader(folder) as log:
...         log.seek_last(100)
...         for item in log.batches():
...             print(item)  # a `Batch`, or a `Loss` that says what is not there

Reading changes nothing, and works while a peer writes. `ReplayClient` reads the same over the
network, from a publisher of durable streams or a recorder.
"""

from __future__ import annotations

from meshmsg._replay.log_client import LogEpoch, RemoteLog, ReplayClient
from meshmsg.recovery.groups.store import CURSOR_PREFIX, GroupRecord, GroupStore
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.folder import CURSORS_FOLDER, LogFolder, find_logs
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.verify import Report, Summary, summarize, verify

__all__ = [
    "Cursor",
    "GroupRecord",
    "LogEpoch",
    "LogFolder",
    "LogReader",
    "RemoteLog",
    "ReplayClient",
    "Report",
    "Summary",
    "drop_cursor",
    "drop_group",
    "find_logs",
    "group_of",
    "summarize",
    "verify",
]


def group_of(cursor: str) -> str | None:
    """Return the work group that a cursor of this name holds the log for; `None` for a reader's."""
    return cursor.removeprefix(CURSOR_PREFIX) if cursor.startswith(CURSOR_PREFIX) else None


def drop_cursor(folder: LogFolder, name: str) -> list[Cursor]:
    """Forget the cursors of this name, also while the log is written: what they held may expire.

    Returns those that there were.
    """
    cursors = Cursors(f"{folder.path}/{CURSORS_FOLDER}", files=folder.files)
    found = [cursor for cursor in cursors.all() if cursor.name == name]
    for cursor in found:
        cursors.remove(cursor.name, cursor.stream)
    return found


def drop_group(folder: LogFolder, name: str) -> bool:
    """Forget a work group and what it has yet to do; returns whether there was one."""
    about = folder.about()
    store = None if about is None else GroupStore(folder, about.stream)
    if store is None or not store.has(name):
        return False
    store.remove(name)
    return True
