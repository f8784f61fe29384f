"""A neutral load: what an attacker's traffic and its use of the processor cost by themselves.

The machine has few cores, and an attacker that sends megabytes, or encodes them, takes its part of
them from everybody: events are later beside *any* such process.  So the delay under an attack is
held against that beside a neutral load, which is a process of the same priority that

- sends at the same moments, at the same ports, as many messages and as many bytes as the attacker
  did: on control connections a `ping` that is padded by a field which its receiver skips, at the
  data port a subscription that comes and goes, to a group the heartbeat of a stream of its own;
- has used as much of the processor as the attacker had at each of these moments.

Whatever the attack adds to that is what honest peers do with hostile content.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import zmq

from meshmsg._wire import control as c
from meshmsg._wire import packet
from tests.attack.by_dialled import multicast_place, multicast_sender
from tests.attack.hostile import Attacker
from tests.attack.mutate import raw
from tests.attack.shape import DATA, GROUP, Step

#: Bytes of a padded message, at most: what is not about streams or events may have no more.
PADDED_BYTES = 60_000
#: Changes of one connection at the data port: with many more it is cut.
CHANGES_MAX = 20_000


class Neutral:
    """Sends a shape."""

    def __init__(self, a: Attacker) -> None:
        self._a = a
        self._diallers = {name: a.dial(name) for name in a.targets}
        self._data = a.data_socket()
        self._prefix = c.stream_wire_id("default", a.scene.peer).to_bytes(8, "little")
        self._place = multicast_place(a)
        self._sender = multicast_sender()
        self._turn = 0

    def play(self, steps: list[Step]) -> None:
        began = time.monotonic()
        for at, cpu_s, said in steps:
            self._wait(began + at, cpu_s)
            for where, (messages, size) in said.items():
                self._send(where, messages, size)

    def _wait(self, until: float, cpu_s: float) -> None:
        """Wait as an attacker does, who works meanwhile."""
        while (left := until - time.monotonic()) > 0:
            for dialler in self._diallers.values():
                dialler.keep()
                dialler.drain()
            if time.process_time() < cpu_s:
                sum(range(10_000))
            else:
                time.sleep(min(left, 0.01))

    def _send(self, where: str, messages: int, size: int) -> None:
        if where == DATA:
            size -= sum(self._subscribe() for _ in range(messages))
            where, messages = "shop", 0
        elif where == GROUP:
            size -= sum(self._beat() for _ in range(messages))
            where, messages = "shop", 0
        messages = max(messages, size // PADDED_BYTES)
        for _ in range(messages):
            ping: dict[str, Any] = {"t": "ping", "number": 1}
            ping["pad"] = bytes(max(0, size // messages - len(raw(ping)) - 10))
            self._diallers[where].say(raw(ping), paced=False)

    def _subscribe(self) -> int:
        self._turn += 1
        if self._turn % CHANGES_MAX == 0:
            self._data = self._a.data_socket()
        data = (b"\1" if self._turn % 2 else b"\0") + self._prefix
        with contextlib.suppress(zmq.Again):
            self._data.send(data, zmq.NOBLOCK)
        return len(data)

    def _beat(self) -> int:
        if self._place is None:
            return 0
        data = packet.PacketBeat(1, 1, 0, 0, 0, 0, 9, 0).encode()
        self._sender.sendto(data, self._place[:2])
        return len(data)


def neutral(a: Attacker) -> Iterator[None]:
    """What another process sent, in harmless words."""
    Neutral(a).play(a.steps)
    yield
