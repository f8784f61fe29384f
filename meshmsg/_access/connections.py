"""Connections to a peer's two ports: who gets in, who is cut, and who never finishes a message.

Runs on the I/O thread.  What those inside may ask for is decided in `access_control`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from meshmsg import _platform
from meshmsg._access.access_control import Gate
from meshmsg._runtime import busy
from meshmsg._wire import control as c
from meshmsg.transports.zmq.connection_monitor import Door, connections_allowed, cut, cut_all
from meshmsg.transports.zmq.context import Poller
from meshmsg.transports.zmq.control import ControlServer
from meshmsg.transports.zmq.curve import CONTROL, DATA
from meshmsg.transports.zmq.fanout import FanoutServer
from meshmsg.transports.zmq.sockets import ZmqSockets
from meshmsg.transports.zmq.unread_limit import limits_of
from meshmsg.transports.zmq.zap import ZapRequest

ZAP_PER_TURN_MAX = 256
#: Who says what no subscriber says has no data connection for this long.
STRAY_S = 60.0
#: What is said once when connections fail for a reason that somebody can mend.
EXPLAINED = {
    "wrong_mesh_keys": "somebody dials us with another mesh key: `meshmsg keys show` compares them",
    "missing_keys": "somebody dials us with a key and we have none, or the other way round",
}
#: What all connections to one port may be ahead together.
AHEAD_BYTES_MAX = 64 * 1024 * 1024
CONTROL_LIMITS = limits_of(c.CONTROL_BYTES_MAX, 24 * 1024 * 1024)
DATA_LIMITS = limits_of(1024 * 1024, 1024 * 1024)
#: Counters of the data socket.
NOTED_AT_DATA = ("not_permitted", "bad_upstream", "out_of_step", "bad_prefixes", "prefixes_full")


class Connections:
    """Judges connections for one peer."""

    def __init__(
        self,
        gate: Gate,
        context: ZmqSockets,
        server: ControlServer,
        fanout: FanoutServer,
        poller: Poller,
        connections_max: int,
        look: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._gate = gate
        self._keyring = gate.keyring
        self._server = server
        self._fanout = fanout
        self._poller = poller
        self._look_elsewhere = look  # at connections that are not of the two ports
        self._wake = wake
        self._zap = None if gate.keyring is None else context.zap_server()
        self._is_measured = context.measured
        self._doors: dict[str, Door] = {}
        self._ahead_due = 0.0
        self._is_busy = False
        self._strays: dict[bytes, float] = {}  # by user, until when
        self._limit = connections_allowed(connections_max)
        self._counters = gate.counters

    def open(self, control_gone: Callable[[int], None], data_gone: Callable[[int], None]) -> None:
        """Watch the sockets; these are told of connections that end."""
        control = self._server.watched(CONTROL_LIMITS)
        data = self._fanout.watched(DATA_LIMITS)
        self._doors = {"control": control, "data": data}
        control.gone, data.gone = control_gone, data_gone
        self._fanout.strayed = self._on_stray
        for owner in self._pollables():
            self._poller.add(owner)
        if self._is_measured:
            busy.watch.add(self._on_busy)

    def _pollables(self) -> list[Any]:
        return [*self._doors.values(), *([] if self._zap is None else [self._zap])]

    def close(self) -> None:
        """Nobody gets in any more."""
        busy.watch.remove(self._on_busy)
        for door in self._doors.values():
            door.close()
        if self._zap is not None:
            self._zap.close()

    # --- connections ---

    def on_readable(self, owner: Any) -> bool:
        """Somebody is at a door; `False` if it is something else that is readable."""
        if owner is self._zap:
            self._judge()
        elif owner in self._doors.values():
            owner.read()
            self._explain(owner)
            self._thin_out(owner)
        else:
            return False
        return True

    def _explain(self, door: Door) -> None:
        """Say what to do about handshakes that fail, once for each reason."""
        for kind, what in EXPLAINED.items():
            if door.counters[kind]:
                self._gate.tell_once("%s (counted as %s)", what, kind)

    def spoke(self, fd: int, size: int) -> None:
        """A control connection has said something of so many bytes."""
        door = self._doors["control"]
        if fd not in door.open:
            door.read()  # it came just now
        door.spoke(fd, size)

    def all_read(self) -> None:
        """There is nothing more to read on the control socket."""
        self._doors["control"].emptied += 1

    def _judge(self) -> None:
        assert self._zap is not None
        assert self._keyring is not None
        for _ in range(ZAP_PER_TURN_MAX):
            request = self._zap.recv()
            if request is None:
                return
            user = self._keyring.user(request.domain, request.key)
            if user is not None and not self._is_stray(request, user):
                self._zap.accept(request, user)
            else:
                self._turn_away(request)

    def _on_stray(self, user: bytes) -> None:
        """It harms the subscriptions of others (see `FanoutServer.drain`): it stays out a while."""
        self._strays[user] = _platform.monotonic() + STRAY_S
        name = self._gate.grant(user).name or "somebody"
        self._gate.tell_once("%s says nonsense where subscriptions are made, and is cut off", name)

    def _is_stray(self, request: ZapRequest, user: bytes) -> bool:
        return request.domain == DATA and self._strays.get(user, 0.0) > _platform.monotonic()

    def _turn_away(self, request: ZapRequest) -> None:
        assert self._zap is not None
        self._counters["refused_keys"] += 1
        if request.domain == CONTROL:
            self._zap.refuse(request)
            self._gate.tell_once(
                "refused a peer at %s: its public key %s is not allowed here",
                request.host or "?",
                request.key.hex(),
                by=request.host,
            )
        else:  # ZeroMQ gives up what is refused, and the list may change
            self._zap.put_off(request)

    def _thin_out(self, door: Door) -> None:
        """Cut connections beyond the limit."""
        chosen = door.superfluous(self._limit)
        if not chosen:
            return
        for fd in chosen:
            door.forget(fd)
        self._counters["connections_cut"] += cut(chosen, self._addresses())
        text = (
            "more than %s connections (connections_max, or 3/8 of `ulimit -n`): silent ones are cut"
        )
        self._gate.tell_once(text, str(self._limit))

    def _addresses(self) -> list[str]:
        return [*self._server.addresses, *(data for _, data in self._fanout.addresses)]

    def on_tick(self, now: float) -> float:
        """Cut those that send and never finish a message; returns when to come again.

        To take much in costs time of the processor: while this process uses none, nobody can
        have sent much, and nothing is looked at.
        """
        if not self._is_busy:
            return float("inf")
        if now < self._ahead_due:
            return self._ahead_due
        self._is_busy = False
        began = _platform.monotonic()
        count = 0
        for door in self._doors.values():
            over = door.look(AHEAD_BYTES_MAX)
            count += cut(over, self._addresses())
            for fd in over:
                door.forget(fd)
        count += self._look_elsewhere()
        if count:
            self._counters["connections_ahead"] += count
            text = "connections that never finish what they send are cut (counted as %s)"
            self._gate.tell_once(text, "connections_ahead")
        # With very many connections: not more than a twentieth of the time.
        self._ahead_due = now + 20 * (_platform.monotonic() - began)
        return float("inf")

    def _on_busy(self) -> None:
        """This process uses a processor; any thread."""
        self._is_busy = True
        self._wake()

    def cut_greedy(self, fd: int) -> None:
        """End a connection that asks for more than its part of our time."""
        self._counters["connections_greedy"] += cut([fd], self._addresses())
        text = "a connection that asks for more than its part of our time is cut (counted as %s)"
        self._gate.tell_once(text, "connections_greedy")

    def cut_all(self) -> int:
        """End all connections: ZeroMQ cannot end one of many, nor tell which is whose."""
        return cut_all(self._addresses())

    def stats(self) -> dict[str, Any]:
        """Figures of the doors."""
        return {
            "connections_max": self._limit,
            **{name: len(door.open) for name, door in self._doors.items()},
            "silent": sum(len(door.silent) for door in self._doors.values()),
        }

    def tallies(self) -> Counter[str]:
        """Counters of the doors."""
        total: Counter[str] = Counter()
        for door in self._doors.values():
            total += door.counters
        for name in NOTED_AT_DATA:
            total[name] += self._fanout.counters[name]
        return +total
