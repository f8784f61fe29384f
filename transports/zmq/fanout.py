"""Fan-out over ZeroMQ PUB/SUB: frames and heartbeats from a publisher to all its subscribers.

The first eight bytes of a message are the stream's id, which is what ZeroMQ filters by.  A
subscription also subscribes to a token of its own: seen on the XPUB socket, it proves that the
pipe is there and that all its stream prefixes are in force; seen to go, that the pipe has gone.

Neither class has a lock: whoever calls holds the one that guards the socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import zmq

from meshmsg.recovery.stream.quotas import Owner, Quota
from meshmsg.transports.zmq.connection_monitor import Door, cut
from meshmsg.transports.zmq.context import (
    MESSAGE_BYTES_MAX,
    Context,
    bind,
    companion,
    source_fd,
    user_id,
)
from meshmsg.transports.zmq.curve import DATA
from meshmsg.transports.zmq.port import port_of
from meshmsg.transports.zmq.receive_socket import ZmqInlet
from meshmsg.transports.zmq.unread_limit import Limits, limits_of

#: A turn of the I/O thread reads so many: whoever publishes waits meanwhile.
READS_PER_DRAIN_MAX = 64
#: Tokens of one connection: a subscription has one, and connections of its own.
TOKENS_EACH_MAX = 16
#: Subscriptions on their way upstream: a full queue would lose them, and the token with them.
SUBSCRIPTIONS_QUEUE = 100_000
#: Those of one connection that wait to be read: ZeroMQ enters them all at once, with the lock of
#: whoever publishes.  More wait at their sender.
SUBSCRIPTIONS_UNREAD = 64
#: What the handshake takes, with keys; a subscription has 13 bytes at most.
SUBSCRIPTION_BYTES_MAX = 512
#: Prefixes that all connections subscribe to, and one of them.
PREFIXES_MAX = 100_000
PREFIXES_EACH_MAX = 20_000
STREAM_BYTES = 8
TOKEN_BYTES = 12
TOKEN_START = b"MMS1"
#: A frame that is pushed is not larger, unless its publisher was told so.
PUSHED_BYTES_MAX = 1024 * 1024


class FanoutServer:
    """The publisher's XPUB socket.

    With `may`, it is asked for each subscription: who (the user's id), and for which prefix.
    ZeroMQ keeps every prefix that somebody subscribes to, some 50 times as large as it came: a
    connection that subscribes to what cannot be one of ours, or to too much, is cut.
    """

    def __init__(
        self,
        context: Context,
        queue_frames: int,
        may: Callable[[bytes, bytes], bool] | None = None,
    ) -> None:
        self._socket = context.socket(
            zmq.XPUB,
            send_queue=queue_frames,
            recv_queue=SUBSCRIPTIONS_UNREAD,
            listens=DATA,
            message_bytes_max=SUBSCRIPTION_BYTES_MAX,
        )
        self._may = may
        if may is not None:  # ZeroMQ only tells of subscriptions, and we put them in force
            self._socket.setsockopt(zmq.XPUB_MANUAL, 1)
        #: Who is connected.
        self.door: Door | None = None
        #: Called with the user's id of each connection that says what no subscriber says.
        self.strayed: Callable[[bytes], None] = lambda user: None
        self.prefixes = Quota(PREFIXES_EACH_MAX, PREFIXES_MAX)
        self._owners: dict[int, Owner] = {}  # by descriptor
        self._prefixes: dict[tuple[int, bytes], int] = {}  # and the descriptor that each counts for
        self._held: dict[int, set[tuple[int, bytes]]] = {}  # by descriptor
        self._tokens: Counter[int] = Counter()  # by descriptor
        self._to_cut: set[int] = set()  # descriptors, once this turn is over
        self._out_of_step = False
        self.drained = False  #: the last `drain` left nothing
        self.fd = int(self._socket.getsockopt(zmq.FD))
        self.pollable = self.fd
        self.addresses: list[tuple[str, str]] = []
        self.counters: Counter[str] = Counter()
        #: A test or a demo may lose messages here: called with each, true means dropped.
        self.fault: Callable[[bytes], bool] | None = None
        self._port = port_of(self._socket)
        self._send = self._port.send

    def watched(self, limits: Limits) -> Door:
        """Watch who is connected, and return what tells."""
        self.door = Door(self._socket, limits)
        return self.door

    def bind(self, control_address: str) -> None:
        """Listen beside a control address."""
        real = bind(self._socket, companion(control_address))
        self.addresses.append((control_address, real))

    def send(self, message: bytes) -> None:
        """To everyone who subscribed; never waits: a full pipe loses it and the loss is found."""
        if self.fault is not None and self.fault(message):
            self.counters["injected_drops"] += 1
            return
        self._send(message)

    def drain(self) -> list[tuple[bool, bytes]]:
        """Subscriptions (`True`) and their ends (`False`) seen since the last call.

        After nonsense from one subscriber, ZeroMQ takes the subscriptions that wait behind it for
        those of other connections (libzmq 4.3.5, `XPUB_MANUAL`), until all that waited was read:
        none of them is put in force, and whoever they came from has to dial anew.
        """
        seen: list[tuple[bool, bytes]] = []
        self.drained = False
        for _ in range(READS_PER_DRAIN_MAX):
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._out_of_step = False
                self.drained = True
                if self.door is not None:
                    self.door.emptied += 1
                break
            message = bytes(frame.buffer)
            fd = source_fd(frame)
            if self.door is not None:
                self.door.spoke(fd, len(message))
            if message[:1] not in (b"\0", b"\1"):
                self.counters["bad_upstream"] += 1
                self._on_nonsense(frame)
                continue
            came, prefix = message[:1] == b"\1", message[1:]
            if came and not self._has_room(fd, prefix):
                self._cut(fd)
            else:
                if not came:
                    self._free(fd, prefix)
                if self._may is None or self._put_in_force(frame, came, prefix):
                    seen.append((came, prefix))
        if self._to_cut:
            cut(self._to_cut, [address for _, address in self.addresses])
            self._to_cut.clear()
        return seen

    def _has_room(self, fd: int, prefix: bytes) -> bool:
        """Return False for what is no prefix of ours, and for a connection that has too many."""
        token = len(prefix) == TOKEN_BYTES and prefix[:4] == TOKEN_START
        if not token and len(prefix) != STREAM_BYTES:
            self.counters["bad_prefixes"] += 1
            return False
        if self.door is None or (connection := self.door.open.get(fd)) is None:
            return True
        self._tokens[fd] += token
        if self._tokens[fd] > TOKENS_EACH_MAX:
            self.counters["prefixes_full"] += 1
            return False
        key = self._key(fd, prefix)
        if key in self._prefixes:
            return True
        owner = self._owners.setdefault(fd, Owner(connection.host, b"%d" % fd))
        giver = self.prefixes.giver(owner)
        if giver is None or giver != owner:
            self.counters["prefixes_full"] += 1
        if giver is None:
            return False
        if giver != owner:
            self._cut(int(giver.link))
        self.prefixes.take(owner)
        self._prefixes[key] = fd
        self._held.setdefault(fd, set()).add(key)
        return True

    def _key(self, fd: int, prefix: bytes) -> tuple[int, bytes]:
        """ZeroMQ tells of the first who subscribes to a prefix, and of the last who has done so.

        Where `may` is asked, it tells of everybody.
        """
        return (-1 if self._may is None else fd, prefix)

    def _free(self, fd: int, prefix: bytes) -> None:
        """A prefix is not subscribed to any more."""
        key = self._key(fd, prefix)
        holder = self._prefixes.pop(key, None)
        if holder is not None:
            self._held[holder].discard(key)
            self.prefixes.free(self._owners[holder])

    def forget(self, fd: int) -> None:
        """A connection is gone, and what it subscribed to with it; with the lock held."""
        owner = self._owners.pop(fd, None)
        self._tokens.pop(fd, None)
        if owner is not None:
            self.prefixes.free(owner, self.prefixes.owners[owner])
        for key in self._held.pop(fd, ()):
            del self._prefixes[key]

    def _on_nonsense(self, frame: zmq.Frame) -> None:
        self._cut(source_fd(frame))
        if self._may is not None:
            self._out_of_step = True
            self.strayed(user_id(frame))

    def _cut(self, fd: int) -> None:
        """End a connection when this turn is over: once, whatever else it has said by then."""
        self._to_cut.add(fd)

    def _put_in_force(self, frame: zmq.Frame, came: bool, prefix: bytes) -> bool:
        """Subscribe or unsubscribe whoever this message came from, if it may."""
        assert self._may is not None
        if self._out_of_step:
            self.counters["out_of_step"] += 1
            self._cut(source_fd(frame))
            return not came
        if not came:
            self._socket.setsockopt(zmq.UNSUBSCRIBE, prefix)
            return True
        if not self._may(user_id(frame), prefix):
            self.counters["not_permitted"] += 1
            return False
        self._socket.setsockopt(zmq.SUBSCRIBE, prefix)
        return True

    def close(self, linger_s: float) -> None:
        """Close; what is queued has `linger_s` to leave."""
        self._port.close()
        self._socket.close(linger=int(linger_s * 1000))


def sub_socket(context: Context, queue_frames: int) -> zmq.Socket[bytes]:
    """A SUB socket."""
    return context.socket(zmq.SUB, send_queue=SUBSCRIPTIONS_QUEUE, recv_queue=queue_frames)


def fanout_limits(queue_frames: int) -> Limits:
    """What publishers may be ahead of a subscription that is slow."""
    return limits_of(MESSAGE_BYTES_MAX, queue_frames * PUSHED_BYTES_MAX)


class FanoutClient(ZmqInlet):
    """The SUB socket of one subscription, connected to any number of publishers."""

    def __init__(self, context: Context, queue_frames: int) -> None:
        super().__init__(context, sub_socket(context, queue_frames), fanout_limits(queue_frames))

    def watch(self, fd: int) -> None:
        """Have `wait` end for this descriptor, too."""
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        """It is about to be closed."""
        self._poller.unregister(fd)

    def subscribe(self, prefix: bytes) -> None:
        """Take messages that start with the prefix."""
        self._socket.setsockopt(zmq.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Take them no more."""
        self._socket.setsockopt(zmq.UNSUBSCRIBE, prefix)
