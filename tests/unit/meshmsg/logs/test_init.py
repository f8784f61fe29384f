"""Durable logs by public names: batches of a log here and over the network, letting go of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Batch, Loss, PayloadError, Peer, Stream
from meshmsg.logs import (
    LogFolder,
    LogReader,
    ReplayClient,
    drop_cursor,
    drop_group,
    find_logs,
    group_of,
    summarize,
    verify,
)
from tests.support.waiting import wait_until

ORDERS = Stream("orders.**", durability="log", fsync="always", groups=("billing",))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Peer]:
    peer = Peer("shop", streams=ORDERS, data_dir=tmp_path, bind="tcp://127.0.0.1:*")
    peer.open()
    for number in range(3):
        peer.publish("orders.eu", {"id": number}, key=f"k{number}")
    yield peer
    peer.close(timeout=0)  # the group has no members


def log_of(data_dir: Path) -> LogFolder:
    """The log of the orders: the group's dead letters have one as well."""
    (found,) = (f for f in find_logs(str(data_dir)) if summarize(f).stream == "shop/orders.**")
    return found


def data_of(items: Iterable[Batch | Loss]) -> list[Any]:
    found = []
    for item in items:
        assert isinstance(item, Batch)
        found += [(event.topic, event.key, event.data) for event in item]
    return found


EXPECTED = [("orders.eu", f"k{number}", {"id": number}) for number in range(3)]


def test_a_reader_gives_the_batches_that_a_subscription_has(shop: Peer, tmp_path: Path) -> None:
    folder = log_of(tmp_path)
    with LogReader(folder) as log:
        log.seek_earliest()
        assert data_of(log.batches()) == EXPECTED
        assert data_of(log.batches()) == []
        shop.publish("orders.eu", "later")
        assert data_of(log.batches()) == [("orders.eu", None, "later")]
    assert verify(folder).is_good


def test_a_codec_that_is_not_here_is_said_when_data_is_looked_at(tmp_path: Path) -> None:
    class Own:
        name = "own"

        def encode(self, data: Any, /) -> bytes:
            return str(data).encode()

        def decode(self, payload: bytes, /) -> Any:
            return payload

    stream = Stream("a", durability="log", codec=Own())
    with Peer("p", streams=stream, data_dir=tmp_path) as peer:
        peer.publish("a", "x")
    (folder,) = find_logs(str(tmp_path))
    with LogReader(folder) as log:
        log.seek_earliest()
        (batch,) = log.batches()
    assert isinstance(batch, Batch)
    (event,) = batch
    assert event.payload == b"x"
    with pytest.raises(PayloadError, match="codec 'own'"):
        _ = event.data


def test_a_client_gives_the_same_over_the_network(shop: Peer) -> None:
    with ReplayClient(shop.address) as client:
        (log,) = client.logs("orders.**")
        (epoch,) = log.epochs
        assert data_of(client.batches(log, *epoch)) == EXPECTED


def test_a_cursor_is_let_go_of(shop: Peer, tmp_path: Path) -> None:
    folder = log_of(tmp_path)
    with (
        Peer("audit", connect=shop.address, data_dir=tmp_path / "audit") as audit,
        audit.subscribe("orders.**", start="committed", name="books", hold=True) as events,
    ):
        for _ in EXPECTED:
            assert events.get(timeout=30) is not None
        events.commit()
        name = "audit/books"
        wait_until(lambda: name in [c.name for c in summarize(folder).cursors], 30)
    assert [cursor.name for cursor in drop_cursor(folder, name)] == [name]
    assert name not in [cursor.name for cursor in summarize(folder).cursors]
    assert drop_cursor(folder, name) == []


def test_a_group_is_let_go_of(shop: Peer, tmp_path: Path) -> None:
    folder = log_of(tmp_path)
    wait_until(lambda: summarize(folder).groups, 30)
    assert [group_of(cursor.name) for cursor in summarize(folder).cursors] == ["billing"]
    assert group_of("audit/audit") is None
    assert drop_group(folder, "billing")
    assert not drop_group(folder, "billing")
