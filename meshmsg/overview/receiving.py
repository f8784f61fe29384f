"""Rows of multicast streams where they are received."""

from __future__ import annotations

from collections.abc import Iterable

from meshmsg.overview.figures import Packets, PeerFigures, Source, Subscription
from meshmsg.overview.rows import ReceiverRow


def receiver_rows(peers: Iterable[PeerFigures]) -> list[ReceiverRow]:
    """A row for each subscription that gets packets."""
    return [
        _row(subscription, source, source.multicast)
        for figures in peers
        for subscription in figures.subscriptions
        for source in subscription.sources
        if source.multicast is not None
    ]


def _row(subscription: Subscription, source: Source, packets: Packets) -> ReceiverRow:
    mended = packets.repaired + packets.computed
    all_of_them = packets.packets + packets.lost_packets
    times = packets.repair_s
    return ReceiverRow(
        stream=source.stream,
        name=subscription.name,
        packets=packets.packets,
        loss=(mended + packets.lost_packets) / all_of_them if all_of_them else 0.0,
        missing=packets.missing,
        nacks=packets.nacks,
        repaired=mended,
        lost=packets.lost_packets,
        kernel_drops=sum(line.kernel_drops or 0 for line in packets.lines),
        repair_p50_s=None if times is None else times.quantile(0.5),
        repair_p99_s=None if times is None else times.quantile(0.99),
    )
