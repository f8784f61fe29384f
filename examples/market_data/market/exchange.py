"""The exchange as a publisher: its streams, and a tick of the simulator as events on them.

| stream | what | how |
|---|---|---|
| `feed.**` | every change of every book, as ITCH 5.0 messages | multicast, lines A and B, durable |
| `trades.**` | every trade, as msgpack | the same |
| `orders.**` | every order as it came in, by account | ZeroMQ, durable, for the group `risk` |
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from market.bars import Bars, add_prints
from market.simulator import Simulator, Tick
from meshmsg import Multicast, Peer, Stream
from meshmsg.moldudp.itch import encode_message

FEED, TRADES, ORDERS = "feed.itch", "trades.tape", "orders.new"
STREAMS = ("feed.**", "trades.**", "orders.**")
RISK = "risk"
#: The feed's buffer is small, so that who is slow or late is served from the log.
FEED_BUFFER = "512KiB"
#: How far the tape's ports are from the feed's.
TAPE_PORTS = 10


class Lines(NamedTuple):
    """Where line A and line B are sent."""

    a: str = "239.255.7.7:30701"
    b: str = "239.255.7.8:30703"

    def shifted(self, ports: int) -> Lines:
        """The same groups at other ports."""
        hosts = [line.rpartition(":") for line in self]
        return Lines(*(f"{host}:{int(port) + ports}" for host, _, port in hosts))


def market_streams(lines: Lines) -> list[Stream]:
    """What the exchange declares."""

    def both(at: Lines) -> Multicast:
        return Multicast(at.a, second=at.b)

    # With a log nobody who is slow loses anything, and nobody is waited for either.
    return [
        Stream(
            STREAMS[0],
            transport=both(lines),
            durability="log",
            fsync="interval:100ms",
            overflow="drop_oldest",
            buffer_bytes=FEED_BUFFER,
        ),
        Stream(
            STREAMS[1],
            transport=both(lines.shifted(TAPE_PORTS)),
            durability="log",
            fsync="interval:100ms",
            overflow="drop_oldest",
        ),
        Stream(STREAMS[2], durability="log", fsync="interval:100ms", groups=(RISK,)),
    ]


class Exchange:
    """A simulator and the peer that tells of it."""

    def __init__(self, peer: Peer, simulator: Simulator) -> None:
        self.simulator = simulator
        self.published: Counter[str] = Counter()
        self.bars: Bars = {}  #: the simulator's own record of trades, by stock and second
        self.exposure: Counter[str] = Counter()  #: notional of orders, by account
        self._peer = peer

    def open(self) -> None:
        """The day begins."""
        self._publish(self.simulator.open())

    def until(self, at_s: float) -> Tick:
        """Publish all that happens up to this second of the day; returns it."""
        tick = self.simulator.until(at_s)
        self._publish(tick)
        return tick

    def close(self) -> None:
        """The day ends."""
        self._publish(self.simulator.close())

    def _publish(self, tick: Tick) -> None:
        add_prints(self.bars, tick.prints)
        for order in tick.entered:
            self.exposure[order.account] += order.shares * order.price
        self._send(FEED, [encode_message(message) for message in tick.feed])
        stocks = [trade.stock for trade in tick.prints]
        self._send(TRADES, [trade._asdict() for trade in tick.prints], stocks)
        accounts = [order.account for order in tick.entered]
        self._send(ORDERS, [order._asdict() for order in tick.entered], accounts)

    def _send(
        self,
        topic: str,
        items: list[bytes] | list[dict[str, object]],
        keys: list[str] | None = None,
    ) -> None:
        if items:
            self._peer.publish_many(topic, items, keys=keys)
            self.published[topic] += len(items)
