"""Spark's checkpoint of a sink: whose it is, how far it is, and whether it can be used.

The table's journal is the truth, so a checkpoint that does not fit is set aside, never believed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import msgspec

from meshmsg import ConfigError
from meshmsg.recovery.log.files import REAL, replace_small
from meshmsg.spark_sink.source.positions import Positions, check_offset

OWNER = "meshmsg.json"


def read_offset(checkpoint: str, batch: int) -> Positions | None:
    """The positions at which Spark planned a batch to end; `None` if it is not there."""
    try:
        with open(f"{checkpoint}/offsets/{batch}", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    if len(lines) != 3 or lines[0] not in ("v1", "v2"):
        problem = f"offsets/{batch} is not of a query with one source, which a sink has"
        raise ConfigError("state", f"{checkpoint}: {problem}: name another --state")
    if lines[2] == "-":
        return {}
    found = json.loads(lines[2])
    return check_offset(found)


def newest_batch(checkpoint: str, folder: str) -> int | None:
    """The highest number in `offsets` or `commits` of a checkpoint."""
    try:
        names = os.listdir(f"{checkpoint}/{folder}")
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdigit()), default=None)


def torn_file(checkpoint: str) -> str:
    """The file of a checkpoint that a crash of the machine left empty or cut off, if there is one.

    Spark does not wait for the disk, and never gets over such a file.
    """
    names = ["metadata"]
    for folder in ("offsets", "commits"):
        batch = newest_batch(checkpoint, folder)
        names += [] if batch is None else [f"{folder}/{batch}"]
    for name in names:
        try:
            with open(f"{checkpoint}/{name}", encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            continue
        if not lines or (lines[0].startswith("v") and len(lines) < 2) or _is_cut(lines[-1]):
            return name
    return ""


def _is_cut(line: str) -> bool:
    try:
        return line != "-" and not isinstance(json.loads(line), dict)
    except ValueError:
        return True


def owner_of(checkpoint: str) -> dict[str, Any] | None:
    """Whose checkpoint it is; `None` if it is new."""
    try:
        with open(f"{checkpoint}/{OWNER}", "rb") as file:
            return msgspec.json.decode(file.read(), type=dict[str, Any])
    except FileNotFoundError:
        if newest_batch(checkpoint, "offsets") is not None:
            problem = f"{checkpoint} is the checkpoint of a query that is no sink: name another"
            raise ConfigError("state", f"{problem} --state") from None
        return None
    except msgspec.DecodeError:
        return None


def reconcile(checkpoint: str, owner: dict[str, Any], is_ahead: Callable[[Positions], bool]) -> str:
    """See that a checkpoint is this table's; one that cannot be used is set aside, and said.

    `is_ahead` tells of positions whether the table lacks something before them.  Raises
    `ConfigError` if it is another sink's, or no sink's.
    """
    known = owner_of(checkpoint)
    if known is not None and known.get("out") != owner["out"]:
        problem = (
            f"{checkpoint} is the checkpoint of the sink into {known.get('out')}: give each "
            f"sink a --state of its own, or remove that folder to go on from what the table has"
        )
        raise ConfigError("state", problem)
    same = known is None or known.get("id") == owner["id"]
    why = _unfit(checkpoint, same, is_ahead)
    text = ""
    if why:
        aside = f"{checkpoint}.aside-{time.time_ns()}"
        os.rename(checkpoint, aside)
        text = f"the checkpoint is set aside as {aside}: {why}; reading goes on where the table is"
    if why or known != owner:
        os.makedirs(checkpoint, exist_ok=True)
        replace_small(REAL, checkpoint, OWNER, msgspec.json.encode(owner))
    return text


def _unfit(checkpoint: str, same: bool, is_ahead: Callable[[Positions], bool]) -> str:
    """Why a checkpoint cannot be used, in words; nothing if it can."""
    if not same:
        return "it is of a table that is gone"
    torn = torn_file(checkpoint)
    if torn:
        return f"{torn} is empty or cut off"
    batch = newest_batch(checkpoint, "commits")
    reached = None if batch is None else read_offset(checkpoint, batch)
    if reached is not None and is_ahead(reached):
        return "the table lacks events that it counts as written"
    return ""
