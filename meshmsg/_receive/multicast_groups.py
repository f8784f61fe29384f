"""Which multicast groups a subscription listens to: joining them, and leaving those of no use.

There is one socket a group, a line, however many streams come by it.  What comes by the lines is
read in `multicast_reading`.  Driven by the `Intake`, with its lock held.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from meshmsg._access.multicast_keys import receiving_seal, sealed_bytes
from meshmsg._model.codecs import codec_for
from meshmsg._model.errors import ConfigError
from meshmsg._model.multicast_config import Feed, split_group
from meshmsg._model.security_config import Security
from meshmsg._receive.incoming_stream import Source
from meshmsg._receive.multicast_reading import put_all_together
from meshmsg._receive.multicast_receiver import PacketSource, groups_to_join, info_of
from meshmsg._wire.control import StreamInfo, Subscribed, stream_wire_id
from meshmsg._wire.multicast_info import MulticastInfo
from meshmsg.transports.udp.multicast import Group, MulticastClient

if TYPE_CHECKING:
    from meshmsg._receive.subscription_io import Intake

log = logging.getLogger("meshmsg.peer")

#: A consumer is busy that did not read for so long: packets fill a kernel buffer quickly.
BACKGROUND_PACKETS_S = 0.005
#: Groups that a subscription joins because publishers announce them: each costs two sockets.
GROUPS_MAX = 64


class Tuner:
    """The multicast groups of one intake."""

    def __init__(
        self, intake: Intake, interface: str, second_interface: str, security: Security | None
    ) -> None:
        self.lines: dict[Group, MulticastClient] = {}
        self.feeds: set[str] = set()  #: streams that the user named
        self._intake = intake
        self._interface = interface
        self._second_interface = second_interface
        self._security = security
        self._fault: Callable[[bytes], bool] | None = None
        self._fault_at: tuple[str, int] | None = None  # the line where packets are lost

    # --- streams ---

    def join(self, feed: Feed) -> None:
        """Receive a stream by hand, from a publisher that we have no connection to."""
        intake, transport = self._intake, feed.transport
        info = StreamInfo(
            name=feed.stream,
            topics=feed.topics,
            epoch=0,
            overflow="drop_oldest",
            codec=codec_for(feed.codec).name,
            window_bytes=1 << 62,
            multicast=info_of(transport, [], sealed_bytes(transport, self._security)),
        )
        wire_id = stream_wire_id(intake._mesh, info.name)
        if wire_id in intake._by_wire:
            return
        codec = intake._codec or codec_for(feed.codec, type=intake._type)
        source = Source(info, wire_id, None, codec)
        self.feeds.add(info.name)
        intake._add_source(source)
        assert info.multicast is not None
        self.tune_in(source, info.multicast, transport.interface, transport.second_interface)
        if source.packets is not None:
            source.packets.begin = partial(self._begin, source)
            source.packets.begin_at = intake.start.for_beat(feed.stream)
        intake._settled = False

    def _begin(self, source: Source, epoch: int, packet: int, event: int, next_: int) -> None:
        """A publisher is heard for the first time, or in a new epoch."""
        # What lies before `next_` is asked for by the numbers of its packets, not of its events.
        intake, name = self._intake, source.info.name
        admission = Subscribed(intake.sub, name, epoch, event, event, event, event, packet)
        intake.epochs.on_admission(source, admission, time.monotonic())
        if source.receiver is not None and source.receiver.epoch == epoch:
            source.heard_next = max(source.heard_next, next_)

    def tune_in(
        self,
        source: Source,
        info: MulticastInfo,
        interface: str | None = None,
        second: str | None = None,
    ) -> None:
        """Join the groups of a stream; where that fails, what comes by repair has to do."""
        intake, old = self._intake, source.packets
        if old is not None and (old.info.group, old.info.second) == (info.group, info.second):
            old.renew(info)
            return
        interface, second = interface or self._interface, second or self._second_interface
        joined = len(self.lines)
        try:
            self._check_room(source, info)  # first: the rest costs system calls
            groups = groups_to_join(info, interface, second)
            lines = [self._line(group, info.receive_buffer_bytes) for group in groups]
        except (ConfigError, OSError) as error:  # also too many open files, as `BindError`
            intake.counters["join_errors"] += 1
            text = "%s: cannot join %s: %s"
            intake.guard.notes.error(text, source.info.name, info.group, error, key=str(error))
            if len(self.lines) > joined:
                self._leave_groups()  # the first of two lines
            return
        put_all_together(intake, source, time.monotonic())
        held = intake._tuning.pending_bytes_max
        seal = receiving_seal(self._security, source.wire_id, source.info.name, len(lines))
        source.packets = PacketSource(info, source.wire_id, intake.sub, lines, held, seal)
        intake.background_s = BACKGROUND_PACKETS_S
        if old is not None:
            self._leave_groups()

    def tune_out(self, source: Source, now: float) -> None:
        """A stream came back with another transport, or is forgotten."""
        if source.packets is not None:
            put_all_together(self._intake, source, now)
            source.packets = None
            self._leave_groups()
            self._find_singles()

    def enter(self, source: Source, admission: Subscribed) -> None:
        """Receive the packets of an epoch, if there are any."""
        # Of one that is over none come; and a recorder does not know them.
        if source.packets is not None and not (admission.over or admission.recorded):
            source.packets.enter(admission.epoch, admission.packet, admission.seal)
            self._find_singles()

    def _find_singles(self) -> None:
        """By what to know live packets of our streams that may be a frame each."""
        self._intake._singles = {
            source.packets.receiver.single_prefix: source
            for source in self._intake._by_name.values()
            if source.packets is not None
            and source.packets.receiver is not None
            and len(source.packets.lines) == 1
            and source.packets.seal is None
        }

    def unheard(self) -> list[str]:
        """Feeds of which no packet has come, and what may be the matter, in words."""
        intake = self._intake
        others, heard = intake.counters["other_packets"], ""
        if others:
            heard = (
                f", but {others} packets of other streams were: the names of the publisher, of the "
                f"stream and of the mesh ({intake._mesh!r}) have to be the same on both sides"
            )
        return [
            f"nothing was heard of {source.info.name} at {source.packets.info.group}{heard}"
            for source in list(intake._by_name.values())
            if source.receiver is None and source.packets is not None and source.link is None
        ]

    # --- lines ---

    def _check_room(self, source: Source, info: MulticastInfo) -> None:
        """Raise `ConfigError` where publishers announce more groups than anybody needs."""
        known = {group[:2] for group in self.lines}
        wanted = {split_group("group", group) for group in (info.group, info.second) if group}
        if source.link is not None and wanted - known and len(known | wanted) > GROUPS_MAX:
            raise ConfigError("group", f"a subscription joins at most {GROUPS_MAX} of them")

    def _line(self, group: Group, buffer_bytes: int) -> MulticastClient:
        line = self.lines.get(group)
        if line is None:
            line = self.lines[group] = MulticastClient(
                group, None, buffer_bytes, self._intake._tuning.spin_s
            )
            line.fault = self._fault if self._fault_at in (None, group[:2]) else None
            self._intake._client.watch(line.fd)
        return line

    def _leave_groups(self) -> None:
        """Close the sockets of groups that no stream comes by any more."""
        sources = self._intake._by_name.values()
        used = [s.packets.lines for s in sources if s.packets is not None]
        for group, line in list(self.lines.items()):
            if not any(line in lines for lines in used):
                del self.lines[group]
                self._intake._client.unwatch(line.fd)
                line.close()
        self._intake._only_line = None

    def set_fault(
        self, fault: Callable[[bytes], bool] | None, at: tuple[str, int] | None = None
    ) -> None:
        """Lose packets on purpose, as they come in on all lines or on one (`meshmsg.testing`)."""
        with self._intake.lock:
            self._fault, self._fault_at = fault, at
            for group, line in self.lines.items():
                line.fault = fault if at in (None, group[:2]) else None

    def close(self) -> None:
        """Say good-bye to the senders, and close the sockets."""
        for source in self._intake._by_name.values():
            if source.packets is not None:
                source.packets.leave()
        for line in self.lines.values():
            line.close()
