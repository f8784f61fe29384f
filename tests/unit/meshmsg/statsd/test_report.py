"""A peer's statistics as metrics: names, sums, and what counters grew by."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg.statsd.report import Growth, metrics_of, word


def stream(published: int = 5, **more: Any) -> dict[str, Any]:
    row = {"published": published, "frames": 1, "bytes": 10, "dropped": 0}
    row |= {"buffer_bytes": 100, "blocked": False, "subscribers": [], "groups": []}
    return row | more


def stats(**more: Any) -> dict[str, Any]:
    return {"counters": {}, "streams": {}, "subscriptions": [], "links": []} | more


@pytest.mark.parametrize(
    ("text", "name"),
    [("pricing/orders.**", "pricing_orders"), ("**", "all"), ("", "all"), ("a-b_c", "a-b_c")],
)
def test_a_name_is_one_level(text: str, name: str) -> None:
    assert word(text) == name


def test_streams_are_told_with_their_subscribers_and_groups() -> None:
    group = {"name": "g", "lag": 3, "members": [1, 2], "acked": 7, "dead": 1, "redelivered": 2}
    row = stream(blocked=True, subscribers=[{"behind": 4}, {"behind": 9}], groups=[group])
    counters, levels = metrics_of(stats(streams={"p/orders": row}, counters={"bad": 2}))
    assert counters["streams.p_orders.published"] == 5
    assert counters["counters.bad"] == 2
    assert counters["streams.p_orders.groups.g.acked"] == 7
    assert levels["streams.p_orders.blocked"] == 1.0
    assert levels["streams.p_orders.subscribers"] == 2
    assert levels["streams.p_orders.behind"] == 9
    assert levels["streams.p_orders.groups.g.members"] == 2


def test_streams_whose_names_become_one_are_added_up() -> None:
    rows = {"p/orders": stream(5, subscribers=[{"behind": 9}]), "p/orders.**": stream(7)}
    counters, levels = metrics_of(stats(streams=rows))
    assert counters["streams.p_orders.published"] == 12
    assert levels["streams.p_orders.buffer_bytes"] == 200
    assert levels["streams.p_orders.subscribers"] == 1
    assert levels["streams.p_orders.behind"] == 9


def test_sources_of_several_subscriptions_are_added_up() -> None:
    source = {"stream": "p/orders", "delivered": 3, "filtered": 0, "nacks": 1}
    source |= {"lost": {"overflow": 2, "gone": 1}}
    counters, _ = metrics_of(stats(subscriptions=[{"sources": [source]}, {"sources": [source]}]))
    assert counters["sources.p_orders.delivered"] == 6
    assert counters["sources.p_orders.lost"] == 6


def test_links_that_are_up_are_counted() -> None:
    _, levels = metrics_of(stats(links=[{"state": "up"}, {"state": "dialling"}]))
    assert levels["links.up"] == 1


def test_growth_is_since_the_last_look_and_a_counter_that_fell_began_anew() -> None:
    growth = Growth()
    assert growth.since({"a": 5, "b": 0}) == {"a": 5}
    assert growth.since({"a": 7, "b": 1}) == {"a": 2, "b": 1}
    assert growth.since({"a": 3, "c": 2}) == {"a": 3, "c": 2}
    assert growth.since({"a": 3}) == {}
