"""`Outlet`: one stream of a peer on its way out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from meshmsg import _platform
from meshmsg._model.codecs import Codec, codec_for
from meshmsg._model.config import Stream, Tuning
from meshmsg._publish.multicast_sender import PacketOutlet
from meshmsg._wire.control import Start, StreamInfo
from meshmsg._wire.open_frame import OpenFrame
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.spill import SpillLog
from meshmsg.recovery.log.writer import LogWriter
from meshmsg.recovery.stream.histogram import Histogram
from meshmsg.recovery.stream.sender import SenderPolicy, StreamSender

log = logging.getLogger("meshmsg.peer")

#: What a send is taken to cost before the first was measured.
SEND_NS = 20_000
#: Receivers that one log line names.
NAMES_MAX = 3


class Outlet(OpenFrame):
    """One stream on its way out: its open frame, its core, and what the hot path needs at hand."""

    __slots__ = (
        "_told_unreached",
        "codec",
        "config",
        "event_bytes_max",
        "gate_waiters",
        "waits",
        "has_groups",
        "log",
        "marked_by",
        "packets",
        "send_ns",
        "sender",
        "spill",
    )

    def __init__(
        self,
        config: Stream,
        stream: str,
        wire_id: int,
        epoch: int,
        tuning: Tuning,
        log: LogWriter | None = None,
        spill: SpillLog | None = None,
    ) -> None:
        super().__init__()
        frame_bytes = tuning.frame_bytes
        policy = SenderPolicy(
            overflow=config.overflow,
            buffer_bytes=int(config.buffer_bytes),
            window_bytes=int(config.window_bytes),
            evict_after_s=None if config.evict_after is None else float(config.evict_after),
            frame_bytes=frame_bytes,
            heartbeat_min_s=tuning.heartbeat_min_s,
            heartbeat_max_s=tuning.heartbeat_max_s,
            # Of two queues of that length each may take but half before the other side knows.
            queue_frames=tuning.queue_frames * 3 // 4 if config.transport is None else None,
        )
        self.config = config
        self.stream = stream
        self.epoch = epoch
        self.codec: Codec = codec_for(config.codec)
        self.log = log  #: of a durable stream
        self.spill = spill  #: of one that spills, unless the log is its spill
        self.sender = StreamSender(
            stream,
            wire_id,
            epoch,
            policy,
            builder=self,
            log=log,
            holds=log is not None and config.fsync == "always",
            spill=spill,
        )
        self.event_bytes_max = int(config.event_bytes_max)
        self.size_max = frame_bytes
        self.large_max = min(self.size_max, self.event_bytes_max)  #: more is seen to apart
        self.tail = None if log is None else log.frame  #: has the events of the open frame too
        self.holds = self.sender.holds  #: each event is on the disk before `publish` returns
        if log is not None:
            self.large_max = min(self.large_max, log.event_bytes_max)
        self.packets: PacketOutlet | None = None  #: of a multicast stream
        self._told_unreached: dict[int, str] = {}  # receivers that the log has named
        self.marked_by = 0  #: the thread whose event made it dirty
        self.send_ns = SEND_NS  #: what a send takes, as measured
        self.dirty = False  #: the gathering thread was called for the open frame
        self.gated = False  #: publishing has to wait, or is over
        self.gate_waiters: list[Callable[[], None]] = []
        self.waits: Histogram | None = None  #: of `publish`, once there was one
        self.has_groups = False  #: that take events
        self.sent_ns = 0  #: when the last frame left
        self.due_ns = 0  #: an event after this time sends the open frame

    def info(self) -> StreamInfo:
        """How the stream is announced."""
        # Subscribers report at each quarter of it: often where the publisher waits for them.
        window = int(self.config.buffer_bytes)
        if self.config.overflow == "block":
            window = min(int(self.config.window_bytes), window)
        else:
            window //= 4
        return StreamInfo(
            name=self.stream,
            topics=self.config.topics,
            epoch=self.epoch,
            overflow=self.config.overflow,
            codec=self.codec.name,
            window_bytes=window,
            multicast=None if self.packets is None else self.packets.info,
            durable=self.log is not None,
        )

    @property
    def disk(self) -> LogFolder:
        """Where events are that memory does not have."""
        store = self.log or self.spill
        assert store is not None
        return store.folder

    def reaches_back(self, start: Start) -> bool:
        """Whether only the log knows where a subscription starts."""
        if self.log is None or start.kind in ("live", "origin"):
            return False
        return start.kind != "resume" or start.epoch != self.epoch

    def is_full(self) -> bool:
        """Whether publishing has to wait: for subscribers, or for packets to leave."""
        if self.sender.flow.is_shut():
            return True
        return self.packets is not None and self.packets.is_crowded()

    def is_shut(self) -> bool:
        """Whether publishing has to wait, or should for a moment."""
        return self.is_full() or self.sender.flow.is_crowded(_platform.monotonic())

    def note_wait(self, waited_s: float) -> None:
        """Count for how long a thread waited to publish."""
        self.waits = self.waits or Histogram()
        self.waits.add(waited_s)

    def blockers(self) -> dict[int, str]:
        """Whom publishing waits for, by subscription: their names."""
        names = {claim.sub: claim.label for claim in self.sender.flow.blockers()}
        for sub in () if self.packets is None else self.packets.sender.holders():
            names[sub] = self.label_of(sub)
        return names

    def label_of(self, sub: int) -> str:
        """Return what a subscription, or a multicast receiver without one, is called."""
        claim = self.sender.flow.claims.get(sub)
        return unconnected(sub) if claim is None else claim.label

    def unreached(self) -> dict[int, str]:
        """Return the names of the receivers that packets do not reach, by subscription."""
        subs = () if self.packets is None else self.packets.sender.unreached()
        return {sub: self.label_of(sub) for sub in subs}

    def tell_unreached(self) -> None:
        """Name in the log the receivers that packets stop reaching, once for each."""
        unreached, told = self.unreached(), self._told_unreached
        if unreached.keys() == told.keys():
            return
        self._told_unreached = unreached
        names = [name for sub, name in unreached.items() if sub not in told]
        if names:
            more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
            log.warning(
                "%s: packets do not reach %s%s, though it reports: nobody waits for it, and what "
                "it misses comes over its connection, if it has one. Look at its firewall, its "
                "switch port and IGMP",
                self.stream,
                ", ".join(names[:NAMES_MAX]),
                more,
                extra={"stream": self.stream},
            )

    def tail_next(self) -> int:
        """One past the last event that is on its way to subscribers."""
        return self.sender.sealed if self.packets is None else self.packets.sent_events


def unconnected(sub: int) -> str:
    """What a multicast receiver is called of which only its reports are known."""
    return f"receiver #{sub & 0xFFFFFF:06x} (not connected)"
