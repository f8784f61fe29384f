"""Rows of streams and of what belongs to them: subscribers, groups, multicast, logs."""

from __future__ import annotations

from meshmsg._overview.figures import Group, Log, Recorder, Sender, Stream, Subscriber
from meshmsg._overview.history import Rates
from meshmsg._overview.rows import GroupRow, LogRow, SenderRow, StreamRow, SubscriberRow


class StreamRows:
    """The rows of all streams at one moment."""

    def __init__(self, rates: Rates, now: float) -> None:
        self._rates = rates
        self._now = now
        self.streams: list[StreamRow] = []
        self.subscribers: list[SubscriberRow] = []
        self.groups: list[GroupRow] = []
        self.senders: list[SenderRow] = []
        self.logs: list[LogRow] = []
        self.published: dict[str, float] = {}  #: events a second, by peer

    def add(self, peer: str, stream: Stream, *, is_here: bool) -> None:
        """A stream of a peer: as it is, or as it was when the peer was there."""
        lost = 0
        for subscriber in stream.subscribers:
            lost += sum(subscriber.lost.values())
            self.subscribers.append(self._subscriber(stream, subscriber, is_here))
        for group in stream.groups:
            lost += sum(group.lost.values())
            self.groups.append(self._group(stream, group, is_here))
        if stream.multicast is not None:
            self.senders.append(self._sender(stream, stream.multicast, is_here))
        if stream.log is not None:
            self.logs.append(_log(peer, stream.stream, stream.log))
        row = self._stream(peer, stream, lost, is_here)
        self.streams.append(row)
        self.published[peer] = self.published.get(peer, 0.0) + row.published_s

    def add_recorder(self, peer: str, recorder: Recorder) -> None:
        """The logs that a peer keeps of others' streams."""
        self.logs.extend(
            LogRow(one.stream, peer, one.next, one.disk_bytes, one.oldest_s, one.retention)
            for one in recorder.streams
        )

    def _rate(self, is_here: bool, value: int, *key: object) -> float:
        return self._rates.rate(key, value, now=self._now) if is_here else 0.0

    def _stream(self, peer: str, stream: Stream, lost: int, is_here: bool) -> StreamRow:
        behind = [one.behind for one in stream.subscribers] + [one.lag for one in stream.groups]
        at = (stream.stream, stream.epoch)
        return StreamRow(
            stream=stream.stream,
            peer=peer,
            is_here=is_here,
            overflow=stream.overflow,
            transport="tcp" if stream.multicast is None else "multicast",
            published=stream.published,
            published_s=self._rate(is_here, stream.published, *at, "published"),
            bytes_s=self._rate(is_here, stream.bytes, *at, "bytes"),
            behind=max(behind, default=0),
            subscribers=len(stream.subscribers),
            groups=len(stream.groups),
            buffer_bytes=stream.buffer_bytes,
            dropped=stream.dropped,
            lost=lost,
            blocked=stream.blocked,
            blocked_by=stream.blocked_by,
        )

    def _subscriber(self, stream: Stream, one: Subscriber, is_here: bool) -> SubscriberRow:
        key = (stream.stream, stream.epoch, one.name, "delivered")
        return SubscriberRow(
            stream=stream.stream,
            name=one.name,
            state=_state(one) if is_here else "gone",
            behind=one.behind,
            delivered=one.delivered,
            delivered_s=self._rate(is_here, one.delivered, *key),
            repaired_frames=one.repaired_frames,
            lost=sum(one.lost.values()),
            blocked_s=one.blocked_s,
            silent_s=one.silent_s,
        )

    def _group(self, stream: Stream, group: Group, is_here: bool) -> GroupRow:
        at = (stream.stream, stream.epoch, "group", group.name)
        return GroupRow(
            stream=stream.stream,
            name=group.name,
            lag=group.lag,
            pending=group.pending,
            in_flight=group.in_flight,
            acked=group.acked,
            acked_s=self._rate(is_here, group.acked, *at, "acked"),
            redelivered=group.redelivered,
            redelivered_s=self._rate(is_here, group.redelivered, *at, "redelivered"),
            dead=group.dead,
            lost=sum(group.lost.values()),
            members=[member.name for member in group.members],
        )

    def _sender(self, stream: Stream, sender: Sender, is_here: bool) -> SenderRow:
        key = (stream.stream, stream.epoch, "packets")
        return SenderRow(
            stream=stream.stream,
            receivers=sender.receivers,
            flow=sender.flow,
            packets=sender.packets,
            packets_s=self._rate(is_here, sender.packets, *key),
            nacks=sender.nacks,
            repairs=sender.repairs,
            behind=max(0, sender.sent - sender.slowest) if sender.receivers else 0,
            unreached=sender.unreached,
        )


def _state(one: Subscriber) -> str:
    if one.evicted:
        return "evicted"
    if one.blocking:
        return "blocking"
    return "live" if one.attached else "away"


def _log(peer: str, stream: str, log: Log) -> LogRow:
    return LogRow(
        stream=stream,
        peer=peer,
        events=log.next,
        disk_bytes=log.disk_bytes,
        oldest_s=log.oldest_s,
        retention=log.retention,
        path=log.path,
        is_open=log.open,
        unsynced_bytes=log.unsynced_bytes,
        holds=log.holds,
        held_bytes=log.held_bytes,
        sync_p99_s=None if log.sync_s is None else log.sync_s.quantile(0.99),
        problem=log.problem or "",
    )
