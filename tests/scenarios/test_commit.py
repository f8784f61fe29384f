"""Named subscriptions: `commit`, and `start="committed"` after a restart of either side."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from meshmsg import AsyncPeer, ConfigError, Peer, Stream
from tests.scenarios.test_replay import durable, fill, taken
from tests.support.ports import free_port
from tests.support.remote import RemotePeer


def test_goes_on_where_it_committed_through_restarts_of_both_sides(tmp_path: Path) -> None:
    seen = []
    for life in range(4):
        with (
            Peer("pub", streams=[durable()], data_dir=tmp_path / "pub") as pub,
            Peer("sub", connect=pub.address, data_dir=tmp_path / "sub") as sub,
        ):
            pub.publish_many("a.b", [[life, n] for n in range(100)])
            with sub.subscribe("a.**", start="committed", name="audit") as events:
                while len(seen) < 70 + 100 * life:
                    event = events.get(timeout=30)
                    assert event is not None
                    seen.append(event.data)
                events.commit()
                assert events.get(timeout=30) is not None  # not committed: it comes again
                assert events.losses == []
    assert seen == [[life, n] for life in range(4) for n in range(100)][:370]


def test_commit_inside_a_loop_counts_the_event_that_was_given_last(tmp_path: Path) -> None:
    fill(tmp_path, 1, 50)
    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address, data_dir=tmp_path / "sub") as sub,
    ):
        for part in range(5):
            with sub.subscribe("a.**", start="committed", name="audit") as events:
                for n, event in enumerate(events):
                    assert event.data == [0, part * 10 + n]
                    events.commit()
                    if n == 9:
                        break
        with sub.subscribe("a.**", start="committed", name="audit") as events:
            pub.publish("a.b", "new")
            assert [event.data for event in taken(events, 1)] == ["new"]
        with sub.subscribe("a.**", start="committed", name="other") as events:
            assert len(taken(events, 51)) == 51


def test_commit_without_having_taken_anything_keeps_the_start(tmp_path: Path) -> None:
    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address, data_dir=tmp_path / "sub") as sub,
    ):
        pub.publish_many("a.b", list(range(10)))
        with sub.subscribe("a.**", start="live", name="audit") as events:
            events.wait_for_publishers(timeout=30)
            events.commit()
        pub.publish_many("a.b", list(range(10, 20)))
        with sub.subscribe("a.**", start="committed", name="audit") as events:
            assert [event.data for event in taken(events, 10)] == list(range(10, 20))


def test_killed_consumer_gets_what_it_had_not_committed(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    count = 5000
    with Peer("pub", bind=address, streams=[durable()], data_dir=tmp_path) as pub:
        pub.publish_many("a.b", list(range(count)))
        at = 0
        while at < count:
            sub = RemotePeer("sub", connect=address, data_dir=str(tmp_path / "sub"))
            sub.run("events = peer.subscribe('a.**', start='committed', name='audit')")
            got = sub.eval("[e.data for e in events.get_many(2000, timeout=30)]")
            assert got == list(range(at, at + len(got)))
            sub.run("events.commit()")
            sub.send("events.get_many(500, timeout=30)")
            sub.kill()
            at += len(got)
        assert at == count


def test_async_commit(tmp_path: Path) -> None:
    fill(tmp_path, 2, 10)

    async def run() -> None:
        with Peer("pub", streams=[durable()], data_dir=tmp_path) as pub:
            sub = AsyncPeer("sub", connect=pub.address, data_dir=tmp_path / "sub")
            async with sub:
                for part in range(2):
                    events = sub.subscribe("a.**", start="committed", name="audit")
                    async with events:
                        for n in range(10):
                            event = await events.get(timeout=30)
                            assert event is not None
                            assert event.data == [part, n]
                        await events.commit()

    asyncio.run(run())


def test_damaged_cursor_counts_as_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 1, 10)
    with (
        Peer("pub", streams=[durable()], data_dir=tmp_path) as pub,
        Peer("sub", connect=pub.address, data_dir=tmp_path / "sub") as sub,
    ):
        with sub.subscribe("a.**", start="committed", name="audit") as events:
            taken(events, 10)
            events.commit()
        (cursor,) = (tmp_path / "sub").glob("cursors/*.cursor")
        cursor.write_bytes(cursor.read_bytes().replace(b"audit", b"audio"))
        with sub.subscribe("a.**", start="committed", name="audit") as events:
            assert len(taken(events, 10)) == 10
    assert "damaged" in caplog.text


def test_what_is_missing_for_a_commit_is_named(tmp_path: Path) -> None:
    with Peer("sub") as sub, sub.subscribe("a.**", name="audit") as events:
        with pytest.raises(ConfigError, match="data_dir"):
            events.commit()
        with pytest.raises(ConfigError, match="start: 'committed' needs a place and a name"):
            sub.subscribe("a.**", start="committed", name="audit")
    with Peer("sub", data_dir=tmp_path) as sub:
        with pytest.raises(ConfigError, match="name="):
            sub.subscribe("a.**", start="committed")
        with pytest.raises(ConfigError, match="group"):
            sub.subscribe("a.**", start="committed", name="audit", group="g")
        with (
            sub.subscribe("a.**", group="g") as events,
            pytest.raises(ConfigError, match=r"events\.ack"),
        ):
            events.commit()


def test_stream_without_a_log_resumes_while_its_publisher_lives(tmp_path: Path) -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("sub", connect=pub.address, data_dir=tmp_path) as sub,
    ):
        pub.publish_many("a.b", list(range(10)))
        for part in range(2):
            with sub.subscribe("a.**", start="committed", name="audit") as events:
                got = [events.get(timeout=30) for _ in range(5)]
                assert [e.data for e in got if e] == list(range(5 * part, 5 * part + 5))
                events.commit()


def test_name_is_one_subscriptions_at_a_time(tmp_path: Path) -> None:
    """Of two, the slower one skipped at its next start what the faster one had done."""
    stream = Stream("a.**", durability="log")
    with (
        Peer("pub", streams=[stream], data_dir=tmp_path / "pub") as pub,
        Peer("one", connect=pub.address, data_dir=tmp_path / "sub") as one,
        Peer("two", connect=pub.address, data_dir=tmp_path / "sub") as two,
    ):
        pub.publish("a.b", 0)
        with one.subscribe("a.**", start="committed", name="audit") as events:
            for peer in (one, two):
                with pytest.raises(
                    ConfigError, match=f"in use.*process {os.getpid()}.*another name"
                ):
                    peer.subscribe("a.**", start="committed", name="audit")
            with two.subscribe("a.**", start="committed", name="other") as others:
                assert others.get(timeout=30) is not None
            with two.subscribe("a.**", start="earliest", name="audit") as others:
                assert others.get(timeout=30) is not None  # it reads, and does not go on from there
            assert events.get(timeout=30) is not None
            events.commit()
        left = two.subscribe("a.**", start="committed", name="audit")
        two.close()  # and with it all its subscriptions
        with one.subscribe("a.**", start="committed", name="audit") as events:
            pub.publish("a.b", 1)
            event = events.get(timeout=30)
            assert event is not None
            assert event.data == 1
        left.close()
