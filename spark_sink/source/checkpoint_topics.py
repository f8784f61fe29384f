"""The topics of a query, kept in its offsets: a checkpoint is good for these, and for no others.

An offset says how far a query is in each stream, whatever the topics of the events.  With topics
that are added later, what came of them before would count as read.  So each offset has a key
`topics/a.**,b.*` beside its positions, and a query that asks for more stops.  One that asks for
less goes on; what it does not read any more is then out of its offsets as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshmsg._model.topics import Pattern
from meshmsg.spark_sink.errors import OtherCheckpoint
from meshmsg.spark_sink.source.positions import TOPICS, Positions, in_order

#: Stands for a level that no pattern names.
_ANY = "\0"


def with_topics(positions: Positions, topics: Iterable[str]) -> Positions:
    """An offset for Spark to keep."""
    return in_order({**positions, TOPICS + ",".join(sorted(set(topics))): 0})


def check_topics(offset: Mapping[str, Any], topics: Iterable[str]) -> None:
    """Raises `OtherCheckpoint` if the topics are more than those that the offset is of.

    One of an earlier release does not say which they were, and is taken as it is.
    """
    for key in offset:
        if key.startswith(TOPICS):
            known = key.removeprefix(TOPICS).split(",")
            added = sorted(topic for topic in topics if not _is_covered(topic, known))
            if added:
                raise OtherCheckpoint(
                    f"it is of a query for topics {', '.join(known)}, and {', '.join(added)} are "
                    f"new: what came of them before would be left out. Read added topics with a "
                    f"query beside this one"
                )


def _is_covered(topic: str, known: Iterable[str]) -> bool:
    """Return True only if every topic that a pattern takes is taken by one of the others."""
    return any(topic == other or _covers(other, topic) for other in known)


def _covers(wide: str, narrow: str) -> bool:
    levels = narrow.replace("**", "\1").replace("*", _ANY).split(".")
    if levels.count("\1") > 1:
        return wide == "**"
    pattern = Pattern(wide)
    # More levels than the wide pattern has cannot make a difference to it.
    for count in range(len(wide.split(".")) + 2 if "\1" in levels else 1):
        some = [part for level in levels for part in ([_ANY] * count if level == "\1" else [level])]
        if some and not pattern.matches(".".join(some)):
            return False
    return True
