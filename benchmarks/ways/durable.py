"""meshmsg through `Peer`, event by event on a durable stream; subscribers take events as others."""

from __future__ import annotations

import tempfile
from multiprocessing.connection import Connection

from benchmarks.task import TOPIC, Task
from benchmarks.ways.sync import publish_through, receive
from meshmsg import Peer, Stream

__all__ = ("publish", "receive")


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone, with all of it in the log."""
    stream = Stream(TOPIC, durability="log")
    with (
        tempfile.TemporaryDirectory(prefix="meshmsg-bench-") as folder,
        Peer("publisher", streams=[stream], data_dir=folder) as peer,
    ):
        publish_through(task, boss, peer, [TOPIC])
