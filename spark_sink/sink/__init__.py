"""The sink daemon: records the mesh and writes tables, each event once.

Names are loaded with their first use: the daemon has no need of what runs in its driver process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshmsg.spark_sink.sink.check import check_output
    from meshmsg.spark_sink.sink.config import (
        Output,
        SinkConfig,
        load_sink,
        make_sink,
        metrics_address,
    )
    from meshmsg.spark_sink.sink.daemon import SinkDaemon
    from meshmsg.spark_sink.sink.driver import SETTINGS, Driver
    from meshmsg.spark_sink.sink.journal import find_commit
    from meshmsg.spark_sink.sink.metrics import open_monitor, sink_part
    from meshmsg.spark_sink.sink.plan import check_plan
    from meshmsg.spark_sink.sink.process import SinkProcess

__all__ = [
    "Driver",
    "Output",
    "SETTINGS",
    "SinkConfig",
    "SinkDaemon",
    "SinkProcess",
    "check_output",
    "check_plan",
    "find_commit",
    "load_sink",
    "make_sink",
    "metrics_address",
    "open_monitor",
    "sink_part",
]

_HOMES = {
    name: home
    for home, names in {
        "check": ("check_output",),
        "config": ("Output", "SinkConfig", "load_sink", "make_sink", "metrics_address"),
        "daemon": ("SinkDaemon",),
        "driver": ("Driver", "SETTINGS"),
        "journal": ("find_commit",),
        "metrics": ("open_monitor", "sink_part"),
        "plan": ("check_plan",),
        "process": ("SinkProcess",),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
