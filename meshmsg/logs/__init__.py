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

from typing import Any

from meshmsg._receive.subscription import StartFrom
from meshmsg._replay.log_client import LogEpoch, RemoteLog, ReplayClient
from meshmsg.recovery.groups.moves import GroupMoves
from meshmsg.recovery.groups.store import CURSOR_PREFIX, GroupRecord, GroupStore
from meshmsg.recovery.log.cursor_moves import CursorMoves
from meshmsg.recovery.log.cursors import Cursor, Cursors
from meshmsg.recovery.log.folder import CURSORS_FOLDER, LogFolder, find_logs
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.verify import Report, Summary, summarize, verify

__all__ = [
    "Cursor",
    "GroupMoves",
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
    "operate_cursors",
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


def operate_cursors(
    data_dir: str,
    action: str,
    name: str = "",
    *,
    stream: str = "",
    start: StartFrom | None = None,
    dry_run: bool = False,
) -> tuple[list[dict[str, Any]], str]:
    """Do to cursors on disk what `Peer.operate` has a peer do: `"cursor ls"`, `"cursor reset"`.

    Returns what was done, and why nothing was, else an empty text.  Raises `ConfigError`,
    `LogError`.
    """
    from meshmsg._peer.peer import order_of  # who only reads logs does without a peer

    order = order_of(action, name, stream, start, 0, 0.0, dry_run)
    return CursorMoves(data_dir).do(order)
