"""Names, attributes and contexts of spans."""

from __future__ import annotations

from opentelemetry import trace

from meshmsg.otel.spans import attributes_of, remote_context, template_of

PARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def test_a_span_is_called_by_the_topics_of_its_stream() -> None:
    assert template_of("shop/orders.**") == "orders.**"
    attributes = attributes_of("publish", "send", "shop/orders.**")
    assert attributes["messaging.destination.template"] == "orders.**"
    assert attributes["messaging.system"] == "meshmsg"


def test_a_context_is_read_from_headers() -> None:
    found = remote_context({"traceparent": PARENT, "tracestate": "a=1"})
    assert found is not None
    named = trace.get_current_span(found).get_span_context()
    assert (named.trace_id, named.span_id) == (int("1" * 32, 16), int("2" * 16, 16))
    assert named.is_remote
    assert named.trace_state.get("a") == "1"


def test_headers_that_name_no_trace_have_none() -> None:
    zeros = "00-" + "0" * 32 + "-" + "2" * 16 + "-01"
    for headers in ({}, {"traceparent": zeros}, {"traceparent": "ff" + PARENT[2:]}):
        assert remote_context(headers) is None
