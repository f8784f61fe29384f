"""What `peer.stats()` says, as metrics: each table names keys of one part of it.

A number that no table names is a counter of its part and shows as a series of `..._counts`, so a
counter that is added somewhere is here by itself.  Names of things are labels, units come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshmsg.monitor.metrics import Metric, Sample, counts, numbers, rest

Row = Mapping[str, Any]


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"meshmsg_{name}", "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"meshmsg_{name}", "counter", text, labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"meshmsg_{name}", "histogram", text, labels)


def _times(metric: Metric, row: Row, key: str, *labels: str) -> Iterator[Sample]:
    """The histogram of a row, if it has one by now."""
    if key in row:
        yield Sample(metric, labels, row[key])


# --- the peer ---

PEER = Metric(
    "meshmsg_peer", "info", "The peer", ("peer", "mesh", "software", "protocol", "compiled")
)
PROBLEM = _gauge("peer_problem", "1 while a thread of the peer fails, or has ended")
PEER_COUNTS = _counter("peer_counts", "Counters of the peer, by name", "counter")
#: Shown before they have counted anything, so that growth is seen: alerts are about them.
ALERTED = (
    "bad_control",
    "cut_off",
    "evictions",
    "io_errors",
    "locked_out",
    "names_taken",
    "not_permitted",
    "publish_waits",
    "record_failures",
    "refused",
    "repaired_frames",
    "threads_ended",
    "unrecorded",
)
PEERS = _gauge("peers", "Other peers that are here")
CLIENTS = _gauge("clients", "Peers that dialled this one and are connected")
LINK_UP = _gauge("link_up", "1 while a peer that this one dials is connected", "address")
RECONNECTS = _counter("link_reconnects", "Times that a connection was made anew", "address")
NAMES_IN_USE = _gauge("streams_taken", "Own streams that others take from a peer of the same name")
CONNECTIONS = _gauge("connections", "Connections to the two ports, and silent ones", "port")
QUOTA = {
    "used": _gauge("quota_used", "Places that peers which dial this one have taken", "quota"),
    "max": _gauge("quota_max", "Places that there are", "quota"),
}

# --- streams that it publishes ---

STREAM = {
    "published": _counter("stream_events", "Events published", "stream"),
    "frames": _counter("stream_frames", "Frames sealed", "stream"),
    "bytes": _counter("stream_bytes", "Size of the frames", "stream"),
    "dropped": _counter(
        "stream_dropped_events",
        "Events that left the buffer before every subscriber had them",
        "stream",
    ),
    "buffer_bytes": _gauge("stream_buffer_bytes", "Size of the retransmit buffer now", "stream"),
    "blocked": _gauge("stream_blocked", "1 while publish waits", "stream"),
}
SUBSCRIBERS = _gauge("stream_subscribers", "Subscriptions", "stream")
BEHIND = _gauge(
    "stream_behind_events", "Events that the slowest subscription has yet to take", "stream"
)
STREAM_COUNTS = _counter("stream_counts", "Further counters, by name", "stream", "counter")
STREAM_WAIT = _histogram(
    "stream_publish_wait_seconds", "How long threads waited in publish, where they did", "stream"
)
_STREAM_OTHER = ("epoch", "first_available", "next")

LOG = {
    "unsynced_bytes": _gauge("log_unsynced_bytes", "Appended and not yet on the disk", "stream"),
    "holds": _gauge("log_holds", "Consumers that hold the log", "stream"),
    "held_bytes": _gauge("log_held_bytes", "Kept for them only", "stream"),
    "disk_bytes": _gauge("log_disk_bytes", "Size of its files", "stream"),
    "oldest_s": _gauge("log_oldest_seconds", "Age of the oldest event in it", "stream"),
}
LOG_SYNC = _histogram("log_sync_seconds", "How long syncs of the disk took", "stream")
LOG_PROBLEM = _gauge("log_problem", "1 while the log cannot be written", "stream")
LOG_COUNTS = _counter("log_counts", "Counters of the log, by name", "stream", "counter")
_LOG_OTHER = ("epoch", "next", "durable")

SPILL = {
    "events": _gauge("spill_events", "Events on disk for slow subscribers", "stream"),
    "bytes": _gauge("spill_bytes", "Their size", "stream"),
    "bytes_max": _gauge("spill_max_bytes", "What there is room for", "stream"),
    "spilled_events": _counter("spill_spilled_events", "Events spilled so far", "stream"),
    "spilled_bytes": _counter("spill_spilled_bytes", "Their size", "stream"),
    "spill_failures": _counter("spill_failures", "Frames that the disk did not take", "stream"),
}
SPILL_PROBLEM = _gauge("spill_problem", "1 while the disk takes nothing", "stream")

SENDER = {
    "receivers": _gauge("multicast_receivers", "Receivers that report", "stream"),
    "injected_drops": _counter("multicast_injected_drops", "Lost on purpose, by tests", "stream"),
}
SENDER_COUNTS = _counter(
    "multicast_sender_counts", "Counters of packets sent, by name", "stream", "counter"
)
_SENDER_OTHER = ("next", "sent", "first_available", "slowest")

_SUB = ("stream", "subscription")
SUBSCRIBER = {
    "behind": _gauge("subscriber_behind_events", "Events that it has yet to take", *_SUB),
    "blocked_s": _gauge("subscriber_blocking_seconds", "How long it holds up the stream", *_SUB),
    "away_s": _gauge("subscriber_away_seconds", "How long it has been away", *_SUB),
    "silent_s": _gauge("subscriber_silent_seconds", "Since it last took an event", *_SUB),
    "attached": _gauge("subscriber_attached", "1 while its data connection is up", *_SUB),
    "evicted": _gauge("subscriber_evicted", "1 while nobody waits for it", *_SUB),
    "delivered": _counter("subscriber_delivered_events", "Events delivered to it", *_SUB),
    "filtered": _counter("subscriber_filtered_events", "Events of topics it does not take", *_SUB),
    "repaired_frames": _counter("subscriber_repaired_frames", "Frames sent to it again", *_SUB),
    "dropped": _counter("subscriber_dropped_events", "Asked for, and gone", *_SUB),
    "evictions": _counter("subscriber_evictions", "Times that it was evicted", *_SUB),
}
SUBSCRIBER_LOST = (
    _counter("subscriber_lost_events", "Events it lost", *_SUB),
    _counter("subscriber_losses_events", "The same, by reason", *_SUB, "reason"),
)

_GROUP = ("stream", "group")
GROUP = {
    "lag": _gauge("group_lag_events", "Events that are not settled", *_GROUP),
    "pending": _gauge("group_pending_events", "Of them, with no member", *_GROUP),
    "in_flight": _gauge("group_in_flight_events", "Of them, with a member", *_GROUP),
    "awaited": _gauge("group_awaited_members", "Members of an earlier start", *_GROUP),
    "redelivered": _counter("group_redelivered_events", "Deliveries after the first", *_GROUP),
    "nacked": _counter("group_nacked_events", "Given back by members", *_GROUP),
    "timed_out": _counter("group_timed_out_events", "Taken back after ack_timeout", *_GROUP),
    "returned": _counter("group_returned_events", "Given back unopened", *_GROUP),
    "recalled": _counter("group_recalled_events", "Known again after a restart", *_GROUP),
    "stale_acks": _counter("group_stale_acks", "Acknowledged by who did not have them", *_GROUP),
}
GROUP_MEMBERS = _gauge("group_members", "Members", *_GROUP)
GROUP_SETTLED = _counter("group_settled_events", "Settled, by outcome", *_GROUP, "outcome")
GROUP_LOST = (
    _counter("group_lost_events", "Events that it lost", *_GROUP),
    _counter("group_losses_events", "The same, by reason", *_GROUP, "reason"),
)
_OUTCOMES = ("acked", "filtered", "dead")

# --- what it receives ---

RECEIVED = {
    "delivered": _counter("received_events", "Events handed to the consumer", *_SUB),
    "filtered": _counter("received_filtered_events", "Events of topics not asked for", *_SUB),
    "missing": _gauge("received_missing_events", "Known to exist, and not here yet", *_SUB),
    "nacks": _counter("received_nacks", "Ranges asked for, repeats included", *_SUB),
}
RECEIVED_LOST = (
    _counter("received_lost_events", "Events lost", *_SUB),
    _counter("received_losses_events", "The same, by reason", *_SUB, "reason"),
)
RECEIVED_COUNTS = _counter("received_counts", "Counters of a stream", *_SUB, "counter")
REPAIR = _histogram(
    "received_repair_seconds", "From the first request for a frame to its repair", *_SUB
)
DELAY = _histogram(
    "received_delay_seconds", "From publish to the consumer, of a sample of frames", *_SUB
)
BATCH = _histogram("received_batch_events", "Events handed over at a time, of the same", *_SUB)
_RECEIVED_OTHER = ("epoch", "received")
EVICTIONS = _counter("subscription_evictions", "Times that it was evicted", "subscription")
REFUSALS = _gauge("subscription_refusals", "Streams that do not take it now", "subscription")
SUBSCRIPTION_COUNTS = _counter(
    "subscription_counts", "Counters of a subscription", "subscription", "counter"
)
RECEIVER = {"missing": _gauge("multicast_missing_packets", "Packets that have not come", *_SUB)}
_RECEIVER_OTHER = ("next", "generation")
RECEIVER_COUNTS = _counter(
    "multicast_receiver_counts", "Counters of packets received", *_SUB, "counter"
)
PACKET_REPAIR = _histogram(
    "multicast_repair_seconds", "From the first request for a packet to its repair", *_SUB
)
KERNEL_DROPS = _counter(
    "multicast_kernel_drops", "Packets that found the socket's buffer full", *_SUB, "line"
)
MEMBER = {
    "delivered": _counter("member_delivered_events", "Events it was given", *_SUB, "group"),
    "redelivered": _counter("member_redelivered_events", "Not for the first time", *_SUB, "group"),
    "acked": _counter("member_acked_events", "Events it acknowledged", *_SUB, "group"),
}
RECORDED = {
    "events": _counter("recorder_events", "Events recorded", "stream"),
    "frames": _counter("recorder_frames", "Frames recorded", "stream"),
    "bytes": _counter("recorder_bytes", "Their size", "stream"),
    "lost": _counter("recorder_lost_events", "Events that are not in the log", "stream"),
    "disk_bytes": _gauge("recorder_disk_bytes", "Size of the log's files", "stream"),
    "oldest_s": _gauge("recorder_oldest_seconds", "Age of the oldest event in it", "stream"),
}
RECORDER_PROBLEM = _gauge("recorder_problem", "1 while nothing can be recorded")


def samples(stats: Row) -> Iterator[Sample]:
    """All that a peer's `stats()` say; what matters most comes first, should there be a bound."""
    yield from _peer(stats)
    streams = list(stats["streams"].values())
    for stream in streams:
        yield from _stream(stream)
    for stream in streams:
        for group in stream["groups"]:
            yield from _group(stream["stream"], group)
    yield from _recorder(stats.get("recorder"))
    for subscription in stats["subscriptions"]:
        yield from _subscription(subscription)
    for member in stats["members"]:
        yield from _member(member)
    for stream in streams:
        for subscriber in stream["subscribers"]:
            yield from numbers(SUBSCRIBER, subscriber, stream["stream"], subscriber["name"])
            lost = subscriber["lost"]
            yield from _lost(SUBSCRIBER_LOST, lost, stream["stream"], subscriber["name"])


def _peer(stats: Row) -> Iterator[Sample]:
    yield Sample(PEER, tuple(str(stats[name]) for name in PEER.labels), 1.0)
    yield Sample(PROBLEM, (), float(stats["problem"] is not None))
    yield Sample(PEERS, (), float(len(stats["peers"])))
    yield Sample(CLIENTS, (), float(len(stats["clients"])))
    yield Sample(NAMES_IN_USE, (), float(len(stats["name_in_use"])))
    for link in stats["links"]:
        yield Sample(LINK_UP, (link["address"],), float(is_up(link)))
        yield Sample(RECONNECTS, (link["address"],), float(link["reconnects"]))
    for port in ("control", "data", "silent"):
        yield Sample(CONNECTIONS, (port,), float(stats["security"][port]))
    for name, quota in stats["quotas"].items():
        yield from numbers(QUOTA, quota, name)
    yield from counts(PEER_COUNTS, {**dict.fromkeys(ALERTED, 0), **stats["counters"]})


def is_up(link: Row) -> bool:
    """Whether the peer of a link is connected, under this address or another."""
    return link["state"] in ("up", "duplicate")


def _stream(stream: Row) -> Iterator[Sample]:
    name = stream["stream"]
    yield from numbers(STREAM, stream, name)
    yield Sample(SUBSCRIBERS, (name,), float(len(stream["subscribers"])))
    behind = max((one["behind"] for one in stream["subscribers"]), default=0)
    yield Sample(BEHIND, (name,), float(behind))
    yield from _times(STREAM_WAIT, stream, "wait_s", name)
    yield from counts(STREAM_COUNTS, rest(stream, STREAM, _STREAM_OTHER), name)
    if log := stream.get("log"):
        yield from numbers(LOG, log, name)
        yield Sample(LOG_PROBLEM, (name,), float(log.get("problem") is not None))
        yield from _times(LOG_SYNC, log, "sync_s", name)
        yield from counts(LOG_COUNTS, rest(log, LOG, _LOG_OTHER), name)
    if spill := stream.get("spill"):
        yield from numbers(SPILL, spill, name)
        yield Sample(SPILL_PROBLEM, (name,), float(spill["problem"] is not None))
    if sender := stream.get("multicast"):
        yield from numbers(SENDER, sender, name)
        yield from counts(SENDER_COUNTS, rest(sender, SENDER, _SENDER_OTHER), name)


def _group(stream: str, group: Row) -> Iterator[Sample]:
    name = group["name"]
    yield from numbers(GROUP, group, stream, name)
    yield Sample(GROUP_MEMBERS, (stream, name), float(len(group["members"])))
    yield from counts(GROUP_SETTLED, {key: group[key] for key in _OUTCOMES}, stream, name)
    yield from _lost(GROUP_LOST, group["lost"], stream, name)


def _lost(metrics: tuple[Metric, Metric], lost: Row, *labels: str) -> Iterator[Sample]:
    """What is lost in all, there before the first loss so that its growth is seen, and why."""
    total, by_reason = metrics
    yield Sample(total, labels, float(sum(lost.values())))
    yield from counts(by_reason, lost, *labels)


def _recorder(recorder: Row | None) -> Iterator[Sample]:
    if recorder is None:
        return
    yield Sample(RECORDER_PROBLEM, (), float(recorder["problem"] is not None))
    for row in recorder["streams"]:
        yield from numbers(RECORDED, row, row["stream"])


def _subscription(subscription: Row) -> Iterator[Sample]:
    name = subscription["name"]
    yield Sample(EVICTIONS, (name,), float(len(subscription["evictions"])))
    yield Sample(REFUSALS, (name,), float(len(subscription["refusals"])))
    yield from counts(SUBSCRIPTION_COUNTS, subscription["counters"], name)
    for source in subscription["sources"]:
        at = (source["stream"], name)
        yield from numbers(RECEIVED, source, *at)
        yield from _lost(RECEIVED_LOST, source["lost"], *at)
        yield from _times(REPAIR, source, "repair_s", *at)
        yield from _times(DELAY, source, "delay_s", *at)
        yield from _times(BATCH, source, "batch_events", *at)
        yield from counts(RECEIVED_COUNTS, rest(source, RECEIVED, _RECEIVED_OTHER), *at)
        if packets := source.get("multicast"):
            yield from numbers(RECEIVER, packets, *at)
            yield from _times(PACKET_REPAIR, packets, "repair_s", *at)
            yield from counts(RECEIVER_COUNTS, rest(packets, RECEIVER, _RECEIVER_OTHER), *at)
            for line in packets["lines"]:
                where = f"{line['group']}:{line['port']} {line['interface']}"
                yield Sample(KERNEL_DROPS, (*at, where), float(line.get("kernel_drops") or 0))


def _member(member: Row) -> Iterator[Sample]:
    yield from counts(SUBSCRIPTION_COUNTS, member["counters"], member["name"])
    for source in member["sources"]:
        yield from numbers(MEMBER, source, source["stream"], member["name"], member["group"])
