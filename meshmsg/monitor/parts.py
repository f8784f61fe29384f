"""What a monitor shows: the peer, and whatever else a program adds (the sink daemon's tables)."""

from __future__ import annotations

import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from meshmsg._model.errors import ClosedError
from meshmsg._model.monitor_config import Monitor
from meshmsg._peer.peer import PeerBase
from meshmsg.monitor import peer_metrics
from meshmsg.monitor.metrics import Metric, Sample
from meshmsg.monitor.readiness import CHECKS, Disk, Problem, Readiness

DISK_FREE = Metric("meshmsg_disk_free_bytes", "gauge", "Free where data is written", ("path",))
DISK_SIZE = Metric("meshmsg_disk_size_bytes", "gauge", "Size of that disk", ("path",))


class View(NamedTuple):
    """One part at one moment."""

    figures: dict[str, Any]  #: for `/stats`
    samples: Iterable[Sample]
    problems: list[Problem]
    checks: tuple[str, ...]  #: what was looked at for them


#: Looks at a part; raises `ClosedError` while there is nothing to look at.
Part = Callable[[], View]


def peer_part(peer: PeerBase, limits: Monitor) -> Part:
    """How a peer is looked at; does not keep it from being collected."""
    found = weakref.ref(peer)
    config = peer.config
    readiness = Readiness(limits, config.connect)
    folders = () if config.data_dir is None else (config.data_dir,)

    def look() -> View:
        peer = found()
        if peer is None:
            raise ClosedError("the peer is gone")
        stats, disks = peer.stats(), look_at_disks(folders)
        problems = readiness.problems(stats, disks, now=time.monotonic())
        return View(stats, [*peer_metrics.samples(stats), *disk_samples(disks)], problems, CHECKS)

    return look


def look_at_disks(folders: Iterable[str]) -> list[Disk]:
    """What is free where folders are, or will be."""
    disks = []
    for folder in folders:
        path = os.path.abspath(folder)
        while not os.path.exists(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)  # it is made with the first event
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            disks.append(Disk(folder, 0, 0))
        else:
            disks.append(Disk(folder, usage.free, usage.total))
    return disks


def disk_samples(disks: Iterable[Disk]) -> list[Sample]:
    """What is free, as metrics."""
    return [
        sample
        for disk in disks
        for sample in (
            Sample(DISK_FREE, (disk.path,), float(disk.free_bytes)),
            Sample(DISK_SIZE, (disk.path,), float(disk.size_bytes)),
        )
    ]
