"""Trace contexts of others: what is well-formed goes on, nothing else."""

from __future__ import annotations

import pytest

from meshmsg._bridge.trace_context import trace_headers

PARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


def test_parent_and_state_are_taken_and_no_other_header() -> None:
    found = trace_headers({"traceparent": PARENT, "tracestate": "a=1,b=2", "cookie": "x"})
    assert found == {"traceparent": PARENT, "tracestate": "a=1,b=2"}


@pytest.mark.parametrize(
    "value", [None, 1, b"00", "", PARENT + "\r\nx: y", PARENT.upper()[:-2] + "ZZ", PARENT + "-1"]
)
def test_a_parent_that_is_none_is_left_out_with_its_state(value: object) -> None:
    assert trace_headers({"traceparent": value, "tracestate": "a=1"}) == {}


@pytest.mark.parametrize("value", [None, 7, "", "a=1\r\nx: y", "a=ü", "x" * 513])
def test_a_state_that_is_none_is_left_out(value: object) -> None:
    assert trace_headers({"traceparent": PARENT, "tracestate": value}) == {"traceparent": PARENT}
