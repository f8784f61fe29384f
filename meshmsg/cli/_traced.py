"""What several peers, logs and tables know of one event, put together; no I/O.

A subscription's own word counts more than its publisher's, which knows only how far it has come.
What cannot be known any more is said in words, in `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from meshmsg import Position, Stream
from meshmsg.cli._values import iso_time

Row = Mapping[str, Any]
#: Ends that somebody should look into.
BAD_STATES = ("lost", "dead")


def put_together(
    position: Position, answers: Iterable[Row], logs: list[dict[str, Any]], tables: list[Any]
) -> dict[str, Any]:
    """The whole of it, as plain data."""
    answers = list(answers)
    told = [answer["publisher"] for answer in answers if answer.get("publisher")]
    publisher = next(iter(told), None)
    known = {"by": position.stream.partition("/")[0], **_published(publisher, logs)}
    topic = known.get("topic")
    unknown = _unknown(position, publisher, known, answers)
    return {
        "position": str(position),
        "published": known,
        "subscriptions": _subscriptions(publisher, answers, topic),
        "groups": [_group(row, topic) for row in (publisher or {}).get("groups", ())],
        "logs": [{k: v for k, v in log.items() if k != "event"} for log in logs],
        "tables": tables,
        "unknown": unknown,
    }


def is_good(found: Row) -> bool:
    """Whether something is known of it, and nobody has lost it or given it up."""
    ends = [*found["subscriptions"], *found["groups"], *found["tables"]]
    known = found["published"]["state"] == "published"
    return known and not any(row["state"] in BAD_STATES for row in ends)


def _published(publisher: Row | None, logs: Iterable[Row]) -> dict[str, Any]:
    """When, and as what: from the publisher's memory, or else from a log."""
    kept: Iterator[Row] = (log["event"] for log in logs if log.get("event"))
    event = next(kept, {})
    state = "unknown" if publisher is None else publisher["state"]
    if event or (state == "unknown" and any(log["state"] in ("there", "gone") for log in logs)):
        state = "published"
    source = (
        {**event, **{k: publisher[k] for k in ("topic", "time_ns", "bytes") if k in publisher}}
        if publisher
        else event
    )
    found: dict[str, Any] = {"state": state}
    if "time_ns" in source:
        found["time"] = iso_time(source["time_ns"])
    return found | {key: source[key] for key in ("topic", "key", "bytes") if key in source}


def _unknown(
    position: Position, publisher: Row | None, known: Row, answers: Iterable[Row]
) -> list[str]:
    """What nobody could say, and why."""
    found = []
    name = position.stream.partition("/")[0]
    if publisher is None:
        text = f"its publisher {name!r} was not asked: it is not among the peers that were found"
        found.append(f"{text}. Who subscribed then is not known")
    elif publisher["state"] == "earlier":
        text = f"{name!r} has started again since ({publisher['epoch']})"
        found.append(f"{text}: of subscriptions, it knows those of its present start only")
    elif "topic" not in known and publisher["state"] == "published":
        found.append("no memory and no log that could be asked has the event itself any more")
    if any(answer.get("error") for answer in answers):
        names = ", ".join(str(a["address"]) for a in answers if a.get("error"))
        found.append(f"no answer from {names}: a peer of an earlier release, or one that is busy")
    return found


# --- subscriptions ---


def _subscriptions(
    publisher: Row | None, answers: Iterable[Row], topic: str | None
) -> list[dict[str, Any]]:
    said = {row["name"]: row for row in (publisher or {}).get("subscriptions", ())}
    own = {row["name"]: row for answer in answers for row in answer.get("subscriptions", ())}
    found = []
    for name in {**said, **own}:
        mine = own.get(name)
        if mine is not None and mine["recorder"]:
            continue  # its log is among the logs
        row = _by_itself(mine, topic) if mine else _by_publisher(said[name], topic)
        found.append({"name": name, **row, "by": "itself" if mine else "its publisher"})
    return found


def _by_itself(row: Row, topic: str | None) -> dict[str, Any]:
    state, reason = row["state"], row["reason"]
    if state == "taken":
        return {"state": _taken(row, topic)}
    words = {"absent": "coming", "here": "received", "over": "delivered or lost"}
    return {"state": words.get(state, state), **({"reason": reason} if reason else {})}


def _by_publisher(row: Row, topic: str | None) -> dict[str, Any]:
    state = row["state"]
    if state == "had":
        taken = _taken(row, topic)
        lossy = row["lost"] and taken != "filtered"
        state = f"{taken} or lost" if lossy else taken
    return {"state": state, **({} if row["is"] == "live" else {"is": row["is"]})}


def _taken(row: Row, topic: str | None) -> str:
    """Delivered, or of a topic that it does not take."""
    if topic is not None and row["patterns"]:
        return "delivered" if _takes(row["patterns"], topic) else "filtered"
    return "delivered or filtered" if row["filtered"] else "delivered"


# --- groups ---


def _group(row: Row, topic: str | None) -> dict[str, Any]:
    state = row["state"]
    if state == "settled":
        takes = topic is None or _takes(row["patterns"], topic)
        state = (
            "acknowledged"
            if topic and takes
            else "filtered"
            if not takes
            else "acknowledged or filtered"
        )
    elif state == "over":
        state = "settled before its publisher started"
    more = {key: row[key] for key in ("member", "attempt", "reason") if row[key]}
    return {"name": row["group"], "state": state, **more}


def _takes(patterns: Iterable[str], topic: str) -> bool:
    return any(Stream(pattern).pattern.matches(topic) for pattern in patterns)
