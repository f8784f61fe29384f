"""Reading the packets of a subscription's multicast streams, and what they add up to.

A repair may complete many frames at once.  Those wait as packets, in the backlog, until there is
need of them.  Everything is called by whoever drives the `Intake`, with its lock held.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from meshmsg._receive.fast_path import take_next
from meshmsg._receive.incoming_stream import Source
from meshmsg._receive.multicast_receiver import PacketSource
from meshmsg._wire.packet import DATA_HEAD, HEAD
from meshmsg.transports.udp.multicast import Datagram

if TYPE_CHECKING:
    from meshmsg._receive.subscription_io import Intake

READ_DATAGRAMS_MAX = 8
#: Read beside each batch that is handed over while more are ready.
KEEP_UP_DATAGRAMS = 3
#: Magic, kind, flags, place, stream and epoch: all that live first packets of a stream share.
SINGLE_PREFIX_BYTES = HEAD.size - 8


def read_lines(intake: Intake, now: float, read_ahead: bool) -> bool:
    """Read multicast packets; returns whether none is left."""
    ready = intake._ready
    drained = True
    lines = list(intake._lines.values())
    at = intake._turn // 2 % len(lines)
    for line in lines[at:] + lines[:at]:
        for _ in range(READ_DATAGRAMS_MAX * (16 if read_ahead else 1)):
            if intake._room <= 0:
                intake._full_at = now
                return False
            if ready and not read_ahead:
                return False
            datagram = line.recv()
            if datagram is None:
                break
            intake._on_datagram(line, datagram, now)
        else:
            drained = False
    return drained


def keep_up(intake: Intake) -> None:
    """Read on while much is ready, as after a repair: a kernel buffer fills quickly."""
    now = time.monotonic()
    reads = KEEP_UP_DATAGRAMS if intake._room > 0 else 0  # what overruns it by these is little
    for line in list(intake._lines.values()):
        for _ in range(reads):
            datagram = line.recv()
            if datagram is None:
                break
            intake._on_datagram(line, datagram, now)
    intake.driven_at = now
    if now >= intake._timer_due:
        intake._run_timers(now, False)


def take_single(intake: Intake, datagram: Datagram, now: float) -> bool:
    """A frame in a packet of its own, the next one: handed to the consumer as events at once.

    `False` if it is anything else: then the long way is needed, and nothing was done.
    """
    data, packet_bytes, origin = datagram
    source = intake._singles.get(data[:SINGLE_PREFIX_BYTES])
    if source is None or packet_bytes < len(data) or intake._ready:
        return False
    packets, receiver = source.packets, source.receiver
    if packets is None or receiver is None:
        return False
    if not packets.is_single(data, origin, receiver.epoch, receiver.next):
        return False
    if not take_next(intake, data[DATA_HEAD.size :], now):
        return False
    packets.take_single(now)
    packets.report(now, intake._room)
    return True


def after_packets(intake: Intake, source: Source, packets: PacketSource, now: float) -> None:
    """What the packets say about the events' own numbers, and whether there are more."""
    if packets.more and source not in intake._backlog:
        intake._backlog.append(source)
        intake._backlog_bytes += packets.complete_bytes
        refill(intake, now)
    receiver, below = source.receiver, packets.receiver
    if receiver is None or below is None or below.epoch != receiver.epoch:
        return
    if below.tail is not None:
        tail = below.take_tail(receiver.high)
        if source.link is not None:  # then its publisher says so by the control channel, too
            tail = min(tail, source.heard_next)
        source.heard_next = max(source.heard_next, tail)
        receiver.on_tail(tail, now=now)
    if receiver.missing and source.link is None and not source.lenders:
        # No connection, no other way to ask: what the packets could not bring is lost.
        reason = below.lost_reason or "overflow"
        intake._deliver(source, receiver.on_gone([(0, 1 << 62)], reason, now=now))
    elif receiver.missing:
        intake.wake_at(source, receiver.deadline())


# --- the backlog ---


def refill(intake: Intake, now: float) -> None:
    """As long as frames have yet to be put together, some are ready."""
    while intake._backlog and not intake._ready:
        put_together(intake, intake._backlog[0], now)


def put_together(intake: Intake, source: Source, now: float) -> None:
    """Some frames of a stream in the backlog, which leaves it with the last."""
    packets, backlog = source.packets, intake._backlog
    if packets is None or not packets.more:
        backlog.remove(source)
        intake._backlog_bytes = 0 if not backlog else intake._backlog_bytes
        return
    try:
        for frame in packets.go_on(now):
            intake._on_frame(source, frame, now)
        after_packets(intake, source, packets, now)
    except Exception:
        intake.guard.failed("packets that were put together")
        backlog.remove(source)  # or it would be tried for ever; more packets put it back
    # Counted here, once for some frames; in between, what comes is simply added.
    waiting = [s.packets for s in backlog if s.packets is not None]
    intake._backlog_bytes = sum(other.complete_bytes for other in waiting)


def put_all_together(intake: Intake, source: Source, now: float) -> None:
    """What comes next is of another epoch, or nothing at all."""
    while source in intake._backlog:
        put_together(intake, source, now)
