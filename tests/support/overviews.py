"""Statistics of peers, as `Peer.stats()` gives them, made up for tests of the view of a mesh."""

from __future__ import annotations

from typing import Any


def subscriber(name: str, **others: Any) -> dict[str, Any]:
    usual = {"behind": 0, "delivered": 0, "blocking": False, "evicted": False, "attached": True}
    return {"name": name, **usual, **others}


def group(name: str, *members: str, **others: Any) -> dict[str, Any]:
    counts = ("lag", "pending", "in_flight", "acked", "redelivered", "dead")
    return {
        "name": name,
        **dict.fromkeys(counts, 0),
        "lost": {},
        "members": [
            {"name": one, "in_flight": 0, "delivered": 0, "acked": 0, "prefetch": 64}
            for one in members
        ],
        **others,
    }


def stream(name: str, *subscribers: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {
        "stream": name,
        "epoch": 1,
        "overflow": "block",
        "published": 0,
        "bytes": 0,
        "buffer_bytes": 0,
        "dropped": 0,
        "blocked": False,
        "blocked_by": [],
        "subscribers": list(subscribers),
        "groups": [],
        **others,
    }


def peer(name: str, *streams: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {
        "peer": name,
        "mesh": "m",
        "software": "1",
        "addresses": [f"tcp://127.0.0.1:{7000 + len(name)}"],
        "problem": None,
        "streams": {one["stream"]: one for one in streams},
        "subscriptions": [],
        "members": [],
        "links": [],
        "clients": [],
        "name_in_use": [],
        "peers": [],
        **others,
    }


def card(name: str, *roles: str) -> dict[str, Any]:
    return {"name": name, "addresses": [], "roles": list(roles), "streams": [], "groups": []}


def ledger_row(stream: str, name: str, published: int, delivered: int) -> dict[str, Any]:
    return {
        "stream": stream,
        "epoch": 1,
        "subscription": name,
        "published": published,
        "delivered": delivered,
        "filtered": 0,
        "lost": {},
        "in_flight": 0,
        "state": "live",
        "dead": 0,
    }
