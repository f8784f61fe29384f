"""Multicast where it is received."""

from __future__ import annotations

from meshmsg.overview.figures import read_stats
from meshmsg.overview.receiving import receiver_rows
from tests.support.overviews import peer


def test_loss_is_what_did_not_come_by_itself() -> None:
    packets = {
        "packets": 95,
        "missing": 1,
        "repaired": 3,
        "computed": 2,
        "lost_packets": 5,
        "nacks": 4,
        "lines": [{"kernel_drops": 7}, {"kernel_drops": None}],
        "repair_s": {"bounds": [0.01, 0.1], "counts": [9, 1, 0], "sum": 0.1},
    }
    source = {"stream": "a/s", "epoch": 1, "delivered": 9, "missing": 0, "nacks": 0, "lost": {}}
    plain = {**source, "stream": "a/t"}
    figures = peer(
        "b",
        subscriptions=[
            {"name": "b/x", "topics": ["**"], "sources": [{**source, "multicast": packets}, plain]}
        ],
    )
    (row,) = receiver_rows([read_stats(figures)])
    assert (row.stream, row.name, row.loss, row.kernel_drops) == ("a/s", "b/x", 0.1, 7)
    assert (row.repaired, row.repair_p50_s, row.repair_p99_s) == (5, 0.01, 0.1)
