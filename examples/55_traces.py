"""`otel=True`: one trace from who publishes an event to all who handle it."""

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from meshmsg import Peer, Stream
from meshmsg.otel import each, handling


def main() -> None:
    # As in any program with OpenTelemetry; in earnest, with an exporter to a collector.
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)

    with (
        Peer("shop", streams=[Stream("orders.**"), Stream("notes.**")], otel=True) as shop,
        Peer("billing", connect=shop.address, otel=True) as billing,
        billing.subscribe("orders.**", group="billing") as work,
        billing.subscribe("**", name="audit") as events,
    ):
        shop.wait_for_subscribers("orders.eu", count=2, timeout=5)
        with trace.get_tracer("shop").start_as_current_span("checkout"):
            shop.publish("orders.eu", {"id": 7})
        shop.publish_many("notes.eu", ["one", "two"])

        with work.get(timeout=5) as event:  # a span, and acknowledged at its end
            print("billed", event.data, event.headers["traceparent"][:6] + "...")

        for event in each(events):  # a span for each turn of the loop
            print("seen", event.data)
            break

        with handling(events.get_many(10, timeout=5)) as span:  # a span, with links
            print("together:", span.attributes["messaging.batch.message_count"])

    show(spans)


def show(spans: InMemorySpanExporter) -> None:
    """Print what belongs together."""
    found = sorted(spans.get_finished_spans(), key=lambda span: span.start_time)
    names = {span.context.span_id: span.name for span in found}
    for span in found:
        parent = "" if span.parent is None else f"  below {names[span.parent.span_id]!r}"
        links = "".join(f"  linked to {names[link.context.span_id]!r}" for link in span.links)
        print(f"{span.name:20}{parent or links}")


if __name__ == "__main__":
    main()
