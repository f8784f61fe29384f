"""`publish_many` that raises: exactly the events before the bad one are out, as the error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream, Subscription
from tests.support.programs.bad_items import BAD
from tests.support.remote import RemotePeer

#: Around the borders of what is encoded together.
PLACES = [0, 2, 5000, 8192, 50_000]
COUNT = 50_100

STREAMS: dict[str, dict[str, Any]] = {
    "volatile": {},
    "durable": {"durability": "log", "fsync": "never"},
}


@pytest.fixture(params=["compiled", "pure"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that the test starts run the compiled core, or the Python code beside it."""
    monkeypatch.setenv("MESHMSG_PURE", "1" if request.param == "pure" else "0")


def taken(events: Subscription, count: int) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        some = events.get_many(100_000, timeout=30)
        assert some, f"{len(got)} of {count} came"
        got += [event.data for event in some]
    return got


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("verb", ["sync", "async"])
@pytest.mark.parametrize("kind", list(STREAMS))
def test_exactly_the_events_before_the_bad_one_are_published(
    tmp_path: Path, kind: str, verb: str
) -> None:
    stream = {"topics": "a.**", "event_bytes_max": 4096, **STREAMS[kind]}
    with (
        RemotePeer("pub", streams=[stream], data_dir=str(tmp_path)) as pub,
        Peer("sub", connect=pub.address) as sub,
        sub.subscribe("a.**") as events,
    ):
        pub.use("bad_items")
        pub.run("peer.wait_for_subscribers('a.b', timeout=30)")
        at = 0
        for error in BAD:
            for place in PLACES:
                call = f"attempt({verb!r}, {error!r}, {place}, {COUNT})"
                name, published, last, text = pub.eval(call)
                at += place
                assert (name, published) == (error, place), text
                assert last == (at - 1 if place else None)
                assert f"({place:,} events of this call are published" in text
                assert taken(events, place) == [b"%d" % n for n in range(place)]
        pub.run("peer.publish('a.b', b'next')")
        assert taken(events, 1) == [b"next"]
        assert not events.losses


def test_the_earlier_of_two_bad_events_is_the_one_that_is_told() -> None:
    with Peer("pub", streams=[Stream("a.**", event_bytes_max=100)]) as pub:
        with pytest.raises(Exception, match="101 bytes") as caught:
            pub.publish_many("a.b", [b"x", b"x" * 101, object()])
        assert caught.value.published == 1  # type: ignore[attr-defined]


def test_items_that_raise_themselves_publish_nothing() -> None:
    def items() -> Any:
        yield 1
        raise LookupError("of the caller's own")

    with Peer("pub", streams=[Stream("a.**")]) as pub:
        with pytest.raises(LookupError):
            pub.publish_many("a.b", items())
        assert pub.publish("a.b", 1).seq == 0


def test_a_key_and_a_payload_that_are_large_in_different_events_fit() -> None:
    with Peer("pub", streams=[Stream("a.**", event_bytes_max=100)]) as pub:
        last = pub.publish_many("a.b", [b"x" * 90, b"x"], keys=[None, "k" * 20])
        assert last is not None
        assert last.seq == 1
