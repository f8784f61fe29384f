"""A peer's statistics as StatsD metrics: counters by what they grew, everything else as it is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

_STREAM_COUNTERS = ("published", "frames", "bytes", "dropped")
_STREAM_LEVELS = ("buffer_bytes", "blocked")
_SOURCE_COUNTERS = ("delivered", "filtered", "nacks")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")

#: Metric names, and their values now.
Values = dict[str, float]


def word(text: str) -> str:
    """A name as one level of a metric's name.

    >>> word("pricing/orders.**"), word("**")
    ('pricing_orders', 'all')
    """
    return _NOT_IN_NAMES.sub("_", text).strip("_") or "all"


def metrics_of(stats: Mapping[str, Any]) -> tuple[Values, Values]:
    """What `peer.stats()` says, as counters (since its start) and levels."""
    counters: Values = defaultdict(float)
    levels: Values = defaultdict(float)
    for name, value in stats["counters"].items():
        counters[f"counters.{name}"] = value
    for name, stream in stats["streams"].items():
        at = f"streams.{word(name)}"  # several streams may have one word: they are added up
        for key in _STREAM_COUNTERS:
            counters[f"{at}.{key}"] += stream[key]
        for key in _STREAM_LEVELS:
            levels[f"{at}.{key}"] += stream[key]
        readers = stream["subscribers"]
        levels[f"{at}.subscribers"] += len(readers)
        behind = max((reader["behind"] for reader in readers), default=0)
        levels[f"{at}.behind"] = max(levels[f"{at}.behind"], behind)
        for group in stream["groups"]:
            below = f"{at}.groups.{word(group['name'])}"
            levels[f"{below}.lag"] += group["lag"]
            levels[f"{below}.members"] += len(group["members"])
            for key in ("acked", "dead", "redelivered"):
                counters[f"{below}.{key}"] += group[key]
    for name, value in _sources(stats):
        counters[name] += value
    levels["links.up"] = sum(link["state"] == "up" for link in stats["links"])
    return counters, levels


def _sources(stats: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for reader in stats["subscriptions"]:
        for source in reader["sources"]:
            at = f"sources.{word(source['stream'])}"
            for key in _SOURCE_COUNTERS:
                yield f"{at}.{key}", source[key]
            yield f"{at}.lost", sum(source["lost"].values())


class Growth:
    """What counters grew by since they were last looked at."""

    def __init__(self) -> None:
        self._before: Values = {}

    def since(self, counters: Values) -> Values:
        """The growth of each that grew; one that fell was begun anew."""
        before, self._before = self._before, dict(counters)
        grown = {}
        for name, value in counters.items():
            old = before.get(name, 0)
            step = value - old if value >= old else value
            if step:
                grown[name] = step
        return grown
