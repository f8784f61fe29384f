"""Publishing through the compiled core: the same rules, numbers and errors as in Python."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg import ConfigError, EventTooLarge, NoStream, Peer, Stream, TopicError
from meshmsg._native import COMPILED
from tests.support.pairs import pair

pytestmark = pytest.mark.skipif(
    not COMPILED, reason="the compiled core is not in use (MESHMSG_PURE, or not built)"
)
if COMPILED:
    from meshmsg import _speed


class Text(str):
    """A topic of a type of its own, which must not get a say in what is done with it."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()


class Blob(bytes):
    """The same for a payload."""

    def __len__(self) -> int:
        return 1_000_000_000


@pytest.fixture
def pub() -> Iterator[Peer]:
    with Peer("pub", streams=[Stream("a.**", event_bytes_max=100_000)]) as peer:
        yield peer


def test_compiled_publish_is_in_use(pub: Peer) -> None:
    assert isinstance(pub.publish, _speed.Publish)
    assert pub.stats()["compiled"] is True


def test_every_kind_of_event_arrives_as_it_was_given() -> None:
    given: list[tuple[Any, dict[str, Any]]] = [
        (b"raw", {}),
        (bytearray(b"raw"), {}),
        (memoryview(b"raw"), {}),
        (Blob(b"blob"), {}),
        ({"id": 1}, {}),
        ("text", {"key": "k"}),
        (b"x", {"headers": {"h": [1, None]}}),
        (b"", {"key": "", "headers": {}}),
        (b"x" * 70_000, {"key": "large"}),
        (None, {"timeout": 1.0}),
    ]
    with pair() as (pub, _, events):
        for _ in range(3):
            for n, (data, notes) in enumerate(given):
                pub.publish(Text(f"a.{n}"), data, **notes)
        for _ in range(3):
            for n, (data, notes) in enumerate(given):
                event = events.get(timeout=30)
                assert event is not None
                wanted = bytes(data) if isinstance(data, bytearray | memoryview) else data
                assert event.data == (bytes.__add__(b"", data) if n == 3 else wanted)
                assert event.topic == f"a.{n}"
                assert event.key == notes.get("key")
                assert dict(event.headers) == notes.get("headers", {})
        assert pub.ledger().reconciles


@pytest.mark.parametrize(
    ("arguments", "named", "error"),
    [
        ((), {}, TypeError),
        (("a.b",), {}, TypeError),
        (("a.b", 1, 2), {}, TypeError),
        (("a.b", 1), {"topic": "a.b"}, TypeError),
        (("a.b", 1), {"colour": 1}, TypeError),
        ((["a.b"], 1), {}, TopicError),
        ((b"a.b", 1), {}, TopicError),
        ((None, 1), {}, TopicError),
        (("a..b", 1), {}, TopicError),
        (("other", 1), {}, NoStream),
        (("a.b", b"x"), {"key": 5}, ConfigError),
        (("a.b", b"x"), {"key": "\ud800"}, ConfigError),
        (("a.b", b"x"), {"headers": [1]}, ConfigError),
        (("a.b", b"x"), {"headers": {1: 2}}, ConfigError),
        (("a.b", b"x" * 100_001), {}, EventTooLarge),
    ],
)
def test_mistakes_raise_what_they_do_in_python(
    pub: Peer, arguments: Any, named: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        pub.publish(*arguments, **named)
    side = pub._open_node().publisher
    with pytest.raises(error):
        type(side).publish(side, *arguments, **named)
    assert pub.publish("a.b", b"x").seq == 0, "no number was given"


def test_eight_threads_never_get_the_same_number() -> None:
    each = 20_000
    given: list[list[int]] = [[] for _ in range(8)]
    with pair(Stream("a.**", overflow="drop_oldest")) as (pub, _, events):
        start = threading.Barrier(8)

        def work(numbers: list[int]) -> None:
            start.wait()
            publish = pub.publish
            for n in range(each):
                note = {"key": str(n)} if n % 50 == 0 else {}
                numbers.append(publish("a.b", b"x", **note).seq)

        threads = [threading.Thread(target=work, args=(numbers,)) for numbers in given]
        for thread in threads:
            thread.start()
        seen = keyed = 0
        while seen + events.lost < 8 * each:
            for event in events.get_many(10_000, timeout=30):
                seen += 1
                keyed += event.key is not None
        for thread in threads:
            thread.join()
        assert all(numbers == sorted(numbers) for numbers in given)
        assert sorted(n for numbers in given for n in numbers) == list(range(8 * each))
        assert events.lost or keyed == 8 * each // 50
        assert pub.ledger().reconciles


def test_publishing_leaves_nothing_behind(pub: Peer) -> None:
    topic, data, text = "a.leak", b"some payload", "some text"

    def publish_all() -> None:
        for _ in range(300):
            pub.publish(topic, data)
            pub.publish(topic, text, key="key")
            with pytest.raises(ConfigError):
                pub.publish(topic, data, key=5)  # type: ignore[arg-type]
            with pytest.raises(NoStream):
                pub.publish("other", data)
        pub.flush()

    for _ in range(3):
        publish_all()
    gc.collect()
    counts = [sys.getrefcount(value) for value in (topic, data, text)]
    before, frames = sys.getallocatedblocks(), pub.stats()["streams"]["a.**"]["frames"]
    for _ in range(10):
        publish_all()
    gc.collect()
    frames = pub.stats()["streams"]["a.**"]["frames"] - frames
    assert [sys.getrefcount(value) for value in (topic, data, text)] == counts
    # What is sent is kept for repair: a frame is its bytes and four numbers.
    assert sys.getallocatedblocks() - before < 300 + 6 * frames


def test_outlets_of_a_closed_peer_are_collected() -> None:
    with Peer("pub", streams=[Stream("a.**")]) as peer:
        peer.publish("a.b", b"x")
    before = len([o for o in gc.get_objects() if isinstance(o, _speed.OpenFrame)])
    del peer
    gc.collect()
    assert len([o for o in gc.get_objects() if isinstance(o, _speed.OpenFrame)]) < before
