"""Whether a peer can do its work: what is wrong, check by check.

| check | is good while |
|---|---|
| `peer` | the peer is open, and none of its threads fails |
| `streams` | its streams are its own, and their logs, spills and recordings can be written |
| `links` | each peer that `connect` names is connected |
| `disks` | the disk of `data_dir` has more than 5 % or more than 1 GiB free |
| `blocked` | no stream has been blocked for more than 10 s |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from meshmsg._model.monitor_config import Monitor
from meshmsg.monitor.peer_metrics import is_up

CHECKS = ("peer", "streams", "links", "disks", "blocked")


class Problem(NamedTuple):
    """One thing that is wrong."""

    check: str
    what: str  #: the stream, address or folder that it is about
    problem: str


class Disk(NamedTuple):
    """What is free where something is written."""

    path: str
    free_bytes: int
    size_bytes: int


class Readiness:
    """The checks of one peer; remembers since when a stream has been blocked."""

    def __init__(self, limits: Monitor, connect: Iterable[str]) -> None:
        self._limits = limits
        self._connect = tuple(connect)
        self._blocked: dict[str, tuple[int, float]] = {}

    def problems(
        self, stats: Mapping[str, Any], disks: Iterable[Disk], *, now: float
    ) -> list[Problem]:
        """All that is wrong now; nothing if the peer is ready."""
        return [
            *self._peer(stats),
            *self._streams(stats),
            *self._links(stats),
            *full_disks(disks, self._limits),
            *self._blocked_ones(stats, now),
        ]

    def _peer(self, stats: Mapping[str, Any]) -> Iterator[Problem]:
        if stats["problem"] is not None:
            yield Problem("peer", stats["peer"], stats["problem"])

    def _streams(self, stats: Mapping[str, Any]) -> Iterator[Problem]:
        for taken in stats["name_in_use"]:
            problem = f"others take it from the peer of the same name at {taken['address']}"
            yield Problem("streams", taken["stream"], problem)
        for stream in stats["streams"].values():
            log = stream.get("log")
            if log is not None and not log["open"]:
                yield Problem("streams", stream["stream"], "its log is not open")
            for part in (log, stream.get("spill")):
                if part is not None and part.get("problem") is not None:
                    yield Problem("streams", stream["stream"], str(part["problem"]))
        recorder = stats.get("recorder")
        if recorder is not None and recorder["problem"] is not None:
            yield Problem("streams", "recorder", str(recorder["problem"]))

    def _links(self, stats: Mapping[str, Any]) -> Iterator[Problem]:
        links = {link["address"]: link for link in stats["links"]}
        for address in self._connect:
            link = links.get(address)
            if link is None:
                yield Problem("links", address, "is not dialled")
            elif not is_up(link):
                reason = f": {link['reason']}" if link["reason"] else ""
                yield Problem("links", address, f"is {link['state']}{reason}")

    def _blocked_ones(self, stats: Mapping[str, Any], now: float) -> Iterator[Problem]:
        before, self._blocked = self._blocked, {}
        for stream in stats["streams"].values():
            if not stream["blocked"]:
                continue
            name = stream["stream"]
            at, since = before.get(name, (stream["next"], now))
            if at != stream["next"]:  # it was open meanwhile
                at, since = stream["next"], now
            self._blocked[name] = (at, since)
            waited = [one["blocked_s"] for one in stream["subscribers"] if one["blocking"]]
            blocked_s = max(now - since, *waited, 0.0)
            if blocked_s > self._limits.blocked_max:
                names = ", ".join(stream["blocked_by"][:5]) or "a receiver"
                yield Problem("blocked", name, f"for {blocked_s:.0f} s by {names}")


def full_disks(disks: Iterable[Disk], limits: Monitor) -> Iterator[Problem]:
    """Disks on which there is too little room."""
    for disk in disks:
        share = disk.free_bytes / disk.size_bytes if disk.size_bytes else 0.0
        if disk.free_bytes < limits.disk_free_min and share < limits.disk_share_min:  # type: ignore[operator]
            yield Problem("disks", disk.path, f"{disk.free_bytes:,} bytes free, {share:.1%}")
