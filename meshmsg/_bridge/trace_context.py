"""The W3C trace context of an event: `traceparent` and `tracestate`, headers there and of HTTP.

What others sent goes on only where it is well-formed: a header of an event may hold any text, and
one of HTTP must not hold the end of a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_PARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
#: The length that W3C asks everybody to carry.
_STATE = re.compile(r"[\x20-\x7e]{1,512}")


def trace_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """The trace context among headers; empty where there is none that is well-formed.

    >>> trace_headers({"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "other": 1})
    {'traceparent': '00-11111111111111111111111111111111-2222222222222222-01'}
    """
    parent, state = headers.get(TRACEPARENT), headers.get(TRACESTATE)
    if not isinstance(parent, str) or not _PARENT.fullmatch(parent):
        return {}
    if not isinstance(state, str) or not _STATE.fullmatch(state):
        return {TRACEPARENT: parent}
    return {TRACEPARENT: parent, TRACESTATE: state}
