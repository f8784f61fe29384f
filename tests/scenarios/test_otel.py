"""Traces across real processes, with OpenTelemetry's SDK: through the mesh, groups and webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meshmsg import AsyncPeer, NoStream, Peer, Stream
from meshmsg._model import batch
from meshmsg.otel import consumer, producer
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

PATIENCE_S = 30


def remote(name: str, **options: Any) -> RemotePeer:
    peer = RemotePeer(name, otel=True, **options)
    peer.use("tracing")
    peer.run("trace_all()")
    return peer


def spans_of(peer: RemotePeer, kind: str) -> list[dict[str, Any]]:
    return [span for span in peer.eval("spans()") if span["kind"] == kind]


def ready(shop: RemotePeer, topic: str, count: int = 1) -> None:
    shop.run(f"peer.wait_for_subscribers({topic!r}, count={count}, timeout={PATIENCE_S})")


def test_a_trace_goes_from_one_process_to_others_and_on() -> None:
    with (
        remote("shop", streams=[{"topics": "orders.**"}]) as shop,
        remote("office", connect=shop.address) as office,
        remote("desk", connect=office.address) as desk,
    ):
        office.run("orders = peer.subscribe('orders.**')")
        desk.run("bills = peer.subscribe('bills.*')")
        ready(shop, "orders.eu")
        ready(office, "bills.eu")
        office.run("forward(orders, 'bills.eu')")
        ordered = shop.eval("publish_within('orders.eu', {'id': 7})")
        assert desk.eval("handle(bills, 1, 'block')") == [{"id": 7}]

        (published,) = spans_of(shop, "PRODUCER")
        # What it forwards may be at the desk before its span has ended.
        wait_until(lambda: spans_of(office, "PRODUCER"), PATIENCE_S)
        (billed,) = spans_of(office, "PRODUCER")
        (paid,) = spans_of(desk, "CONSUMER")
        assert {published["trace"], billed["trace"], paid["trace"]} == {int(ordered, 16)}
        assert paid["parent"] == billed["span"]
        assert paid["links"] == [billed["span"]]
        assert published["name"] == "publish orders.**"
        at = published["attributes"]
        assert at["messaging.system"] == "meshmsg"
        assert at["messaging.operation.type"] == "send"
        assert at["messaging.destination.name"] == "orders.eu"
        assert at["messaging.message.id"].startswith("shop/orders.**@")
        at = paid["attributes"]
        assert at["messaging.operation.type"] == "process"
        assert at["messaging.message.id"] == billed["attributes"]["messaging.message.id"]


def test_a_batch_has_a_link_to_each_of_its_traces() -> None:
    with remote("shop") as shop, remote("desk", connect=shop.address) as desk:
        desk.run("events = peer.subscribe('**')")
        ready(shop, "a")
        shop.run("[peer.publish('a', n) for n in range(3)]; peer.publish_many('a', [3, 4])")
        assert desk.eval("handle(events, 1, 'loop')") == [0]
        assert desk.eval("handle(events, 4, 'batch')") == [1, 2, 3, 4]
        produced = spans_of(shop, "PRODUCER")
        first, several = spans_of(desk, "CONSUMER")
        assert len({span["trace"] for span in produced}) == 4
        assert produced[3]["attributes"]["messaging.batch.message_count"] == 2
        assert first["parent"] == produced[0]["span"]
        assert several["links"] == [span["span"] for span in produced[1:]]
        assert several["attributes"]["messaging.batch.message_count"] == 4


def test_a_group_goes_on_with_the_trace_at_every_attempt() -> None:
    with remote("shop") as shop, remote("worker", connect=shop.address) as worker:
        worker.run("jobs = peer.subscribe('jobs.*', group='workers')")
        ready(shop, "jobs.a")
        shop.run("peer.publish('jobs.a', 1)")
        assert worker.eval("fail_once(jobs)") == "no such order"
        assert worker.eval("handle(jobs, 1, 'block')") == [1]
        (published,) = spans_of(shop, "PRODUCER")
        failed, done = spans_of(worker, "CONSUMER")
        assert failed["trace"] == done["trace"] == published["trace"]
        assert (failed["status"], done["status"]) == ("ERROR", "UNSET")
        assert failed["attributes"]["error.type"] == "ValueError"
        assert done["attributes"]["messaging.consumer.group.name"] == "workers"
        assert (failed["attributes"]["meshmsg.attempt"], done["attributes"]["meshmsg.attempt"]) == (
            1,
            2,
        )
        shop_figures = shop.eval("numbers('meshmsg_stream_events')")
        assert [{"peer": "shop", "stream": "shop/**"}, 1.0] in shop_figures
        wait_until(
            lambda: (
                [{"peer": "shop", "stream": "shop/**", "group": "workers", "outcome": "acked"}, 1.0]
                in shop.eval("numbers('meshmsg_group_settled_events')")
            ),
            PATIENCE_S,
            "an acknowledged event in the figures",
        )


def test_a_trace_goes_out_by_a_webhook_and_comes_in_again(tmp_path: Path) -> None:
    orders = [{"topics": "orders.**", "durability": "log"}]
    with (
        remote("shop", streams=orders, data_dir=str(tmp_path / "shop")) as shop,
        # Not traced itself: it hands on what it has.
        RemotePeer("poster", connect=shop.address, data_dir=str(tmp_path / "poster")) as poster,
        remote("edge", streams=[{"topics": "hooks.**"}]) as edge,
        remote("desk", connect=edge.address) as desk,
    ):
        poster.use("tracing")
        desk.run("events = peer.subscribe('hooks.**')")
        ready(edge, "hooks.shop")
        url = edge.eval("listen('hooks.shop')")
        poster.eval(f"post_to({url!r}, 'orders.**')")
        ordered = shop.eval("publish_within('orders.eu', {'id': 7})")
        (body,) = desk.eval("handle(events, 1, 'block')")
        assert body["data"] == {"id": 7}
        # What was posted may be at the desk before the span of its publish has ended.
        wait_until(lambda: spans_of(edge, "PRODUCER"), PATIENCE_S)
        (published,) = spans_of(shop, "PRODUCER")
        (posted,) = spans_of(edge, "PRODUCER")
        (handled,) = spans_of(desk, "CONSUMER")
        assert posted["parent"] == published["span"]
        assert handled["parent"] == posted["span"]
        assert {published["trace"], posted["trace"], handled["trace"]} == {int(ordered, 16)}
        for peer in (poster, edge):
            peer.run("end()")


# In one process -------------------------------------------------------------------------------


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Keep the spans of this process for one test; global providers are set once a process."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    for module in (producer, consumer):
        monkeypatch.setattr(module, "tracer", lambda: provider.get_tracer("meshmsg"))
    yield kept
    monkeypatch.setattr(batch, "_around", None)


def test_coroutines_have_spans_of_their_own(exporter: InMemorySpanExporter) -> None:
    async def run() -> None:
        streams = Stream("a.*", overflow="block")
        async with (
            AsyncPeer("shop", streams=streams, otel=True) as shop,
            AsyncPeer("desk", connect=shop.address, otel=True) as desk,
            desk.subscribe("a.*") as events,
        ):
            await shop.wait_for_subscribers("a.b", timeout=PATIENCE_S)
            await shop.publish("a.b", 1, key="k", headers={"mine": 1})
            await shop.publish_many("a.b", [2, 3])
            async for event in consumer.each(events):
                assert trace.get_current_span().is_recording()
                if event.data == 1:
                    assert dict(event.headers).keys() == {"mine", "traceparent"}
                if event.data == 3:
                    break

    asyncio.run(run())
    names = [span.name for span in exporter.get_finished_spans()]
    assert sorted(names) == ["process a.*"] * 3 + ["publish a.*"] * 2


def test_what_is_not_published_says_so_in_its_span(exporter: InMemorySpanExporter) -> None:
    with Peer("shop", streams=Stream("orders.**", event_bytes_max="1KiB"), otel=True) as shop:
        with pytest.raises(NoStream):
            shop.publish("weather", 1)
        with pytest.raises(Exception, match="bytes"):
            shop.publish("orders.eu", b"x" * 2000)
        with pytest.raises(Exception, match="headers"):
            shop.publish("orders.eu", b"x", headers=[1])  # type: ignore[arg-type]
    large, unfit = exporter.get_finished_spans()
    assert large.status.status_code.name == unfit.status.status_code.name == "ERROR"
    assert (large.attributes or {})["error.type"] == "EventTooLarge"


def test_traces_of_others_that_are_none_are_passed_over(exporter: InMemorySpanExporter) -> None:
    bad = ["", 7, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "ff-" + "1" * 32, "x" * 5000]
    with (
        Peer("shop") as shop,
        Peer("desk", connect=shop.address, otel=True) as desk,
        desk.subscribe("**") as events,
    ):
        shop.wait_for_subscribers("a", timeout=PATIENCE_S)
        for value in bad:
            shop.publish("a", 1, headers={"traceparent": value, "tracestate": "a\r\nb"})
        for _ in bad:
            event = events.get(timeout=PATIENCE_S)
            assert event is not None
            with event:
                pass
    spans = exporter.get_finished_spans()
    assert len(spans) == len(bad)
    assert all(span.parent is None and not span.links for span in spans)


def test_blocks_may_stand_in_each_other(exporter: InMemorySpanExporter) -> None:
    with (
        Peer("shop", otel=True) as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("**") as events,
    ):
        shop.wait_for_subscribers("a", timeout=PATIENCE_S)
        shop.publish("a", 1)
        shop.publish("a", 2)
        one, two = events.get(timeout=PATIENCE_S), events.get(timeout=PATIENCE_S)
        assert one is not None
        assert two is not None
        before = trace.get_current_span()
        with one:
            outer = trace.get_current_span()
            with two:
                assert trace.get_current_span() is not outer
            assert trace.get_current_span() is outer
        assert trace.get_current_span() is before
    ids = [
        (span.attributes or {}).get("messaging.message.id")
        for span in exporter.get_finished_spans()
    ]
    assert [str(two.position), str(one.position)] == ids[2:]


def test_without_traces_nothing_of_it_is_loaded() -> None:
    with RemotePeer("plain") as plain:
        plain.run("peer.publish('a', 1); import sys")
        assert plain.eval("[name for name in sys.modules if 'otel' in name]") == []
        assert plain.eval("'opentelemetry' in sys.modules") is False


def test_without_traces_publish_is_the_one_that_always_was() -> None:
    with Peer("shop") as plain, Peer("shop2", otel=True) as traced:
        assert "traced" not in repr(plain.publish)
        assert "traced" in repr(traced.publish)
