"""Which multicast groups a subscription listens to: joining them, and leaving those of no use.

What comes by the lines is read in `multicast_reading`.  Called by whoever drives the subscription,
with its lock held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from meshmsg import _platform
from meshmsg._access.multicast_keys import receiving_seal, sealed_bytes
from meshmsg._model.codecs import Codec, codec_for
from meshmsg._model.config import Tuning
from meshmsg._model.errors import ConfigError
from meshmsg._model.multicast_config import Feed, split_group
from meshmsg._model.security_config import Security
from meshmsg._receive.incoming_stream import Source
from meshmsg._receive.incoming_streams import IncomingStreams
from meshmsg._receive.multicast_reading import PacketReading
from meshmsg._receive.multicast_receiver import PacketSource, groups_to_join, info_of
from meshmsg._runtime.guard import Guard
from meshmsg._wire.control import StreamInfo, Subscribed, stream_wire_id
from meshmsg._wire.multicast_info import MulticastInfo
from meshmsg.transports.sockets import multicast_client
from meshmsg.transports.udp.multicast import Group, MulticastClient
from meshmsg.transports.zmq.fanout import FanoutClient

log = logging.getLogger("meshmsg.peer")

Fault = Callable[[bytes], bool]

#: Groups that a subscription joins because publishers announce them: each costs two sockets.
GROUPS_MAX = 64


class Tuner:
    """The multicast groups of one subscription."""

    def __init__(
        self,
        sub: int,
        mesh: str,
        incoming: IncomingStreams,
        reading: PacketReading,
        client: FanoutClient,
        guard: Guard,
        tuning: Tuning,
        on_admission: Callable[[Source, Subscribed, float], None],
        interface: str,
        second_interface: str,
        security: Security | None,
    ) -> None:
        self.feeds: set[str] = set()  #: streams that the user named
        self._sub = sub
        self._mesh = mesh
        self._incoming = incoming
        self._reading = reading
        self._client = client
        self._guard = guard
        self._tuning = tuning
        self._on_admission = on_admission
        self._interface = interface
        self._second_interface = second_interface
        self._security = security
        self._fault: tuple[Fault | None, tuple[str, int] | None] = (None, None)

    # --- streams ---

    def join(self, feed: Feed, codec: Codec | None, type: Any) -> None:
        """Receive a stream by hand, from a publisher that we have no connection to."""
        transport = feed.transport
        info = StreamInfo(
            name=feed.stream,
            topics=feed.topics,
            epoch=0,
            overflow="drop_oldest",
            codec=codec_for(feed.codec).name,
            window_bytes=1 << 62,
            multicast=info_of(transport, [], sealed_bytes(transport, self._security)),
        )
        wire_id = stream_wire_id(self._mesh, info.name)
        if wire_id in self._incoming.by_wire:
            return
        source = Source(info, wire_id, None, codec or codec_for(feed.codec, type=type))
        self.feeds.add(info.name)
        self._incoming.add(source)
        assert info.multicast is not None
        self.tune_in(source, info.multicast, transport.interface, transport.second_interface)
        if source.packets is not None:
            source.packets.begin = partial(self._begin, source)
            source.packets.begin_at = self._incoming.start.for_beat(feed.stream)

    def _begin(self, source: Source, epoch: int, packet: int, event: int, next_: int) -> None:
        """A publisher is heard for the first time, or in a new epoch."""
        # What lies before `next_` is asked for by the numbers of its packets, not of its events.
        name = source.info.name
        admission = Subscribed(self._sub, name, epoch, event, event, event, event, packet)
        self._on_admission(source, admission, _platform.monotonic())
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
        old = source.packets
        if old is not None and (old.info.group, old.info.second) == (info.group, info.second):
            old.renew(info)
            return
        interface, second = interface or self._interface, second or self._second_interface
        joined = len(self._reading.lines)
        try:
            self._check_room(source, info)  # first: the rest costs system calls
            groups = groups_to_join(info, interface, second)
            lines = [self._line(group, info.receive_buffer_bytes) for group in groups]
        except (ConfigError, OSError) as error:  # also too many open files, as `BindError`
            self._incoming.counters["join_errors"] += 1
            text = "%s: cannot join %s: %s"
            self._guard.notes.error(text, source.info.name, info.group, error, key=str(error))
            if len(self._reading.lines) > joined:
                self._leave_groups()  # the first of two lines
            return
        self._reading.put_all_together(source, _platform.monotonic())
        held = self._tuning.pending_bytes_max
        seal = receiving_seal(self._security, source.wire_id, source.info.name, len(lines))
        source.packets = PacketSource(info, source.wire_id, self._sub, lines, held, seal)
        if old is not None:
            self._leave_groups()

    def tune_out(self, source: Source, now: float) -> None:
        """A stream came back with another transport, or is forgotten."""
        if source.packets is not None:
            self._reading.put_all_together(source, now)
            source.packets = None
            self._leave_groups()
            self._reading.find_singles()

    def enter(self, source: Source, admission: Subscribed) -> None:
        """Receive the packets of an epoch, if there are any."""
        # Of one that is over none come; and a recorder does not know them.
        if source.packets is not None and not (admission.over or admission.recorded):
            source.packets.enter(admission.epoch, admission.packet, admission.seal)
            self._reading.find_singles()

    # --- lines ---

    def _check_room(self, source: Source, info: MulticastInfo) -> None:
        """Raise `ConfigError` where publishers announce more groups than anybody needs."""
        known = {group[:2] for group in self._reading.lines}
        wanted = {split_group("group", group) for group in (info.group, info.second) if group}
        if source.link is not None and wanted - known and len(known | wanted) > GROUPS_MAX:
            raise ConfigError("group", f"a subscription joins at most {GROUPS_MAX} of them")

    def _line(self, group: Group, buffer_bytes: int) -> MulticastClient:
        lines = self._reading.lines
        line = lines.get(group)
        if line is None:
            spin_s = self._tuning.spin_s
            line = lines[group] = multicast_client(group, buffer_bytes, spin_s, self._client)
            self._spoil(group, line)  # when it is among the lines: `set_fault` may be called now
            self._client.watch(line.fd)
        return line

    def _leave_groups(self) -> None:
        """Close the sockets of groups that no stream comes by any more."""
        reading, sources = self._reading, self._incoming.by_name.values()
        used = [s.packets.lines for s in sources if s.packets is not None]
        for group, line in list(reading.lines.items()):
            if not any(line in lines for lines in used):
                del reading.lines[group]
                self._client.unwatch(line.fd)
                line.close()
        reading.only_line = None

    def set_fault(self, fault: Fault | None, at: tuple[str, int] | None = None) -> None:
        """Lose packets on purpose, as they come in on all lines or on one (`meshmsg.testing`).

        Without the lock: a consumer that waits for an event has it meanwhile.
        """
        self._fault = (fault, at)
        for group, line in list(self._reading.lines.items()):
            self._spoil(group, line)

    def _spoil(self, group: Group, line: MulticastClient) -> None:
        fault, at = self._fault
        line.fault = fault if at in (None, group[:2]) else None

    def close(self) -> None:
        """Say good-bye to the senders, and close the sockets."""
        for source in self._incoming.by_name.values():
            if source.packets is not None:
                source.packets.leave()
        for line in self._reading.lines.values():
            line.close()
