"""Configuration of the multicast transport: `Multicast` at the publisher, `Feed` without a link."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from meshmsg._model.codecs import Codec, codec_for
from meshmsg._model.errors import ConfigError, TopicError
from meshmsg._model.topics import Pattern, check_pattern
from meshmsg._model.units import check_name, check_text, one_of, parse_size, parse_time, set_field
from meshmsg._wire.multicast_info import RECEIVE_BUFFER_MAX
from meshmsg._wire.packet import DATA_HEAD, PARITY_DATA_MAX, PARITY_EXTRA_MAX, PARITY_MORE_BYTES

FLOW_WORDS = ("rate", "fastest", "slowest")
#: What IP and UDP take of a datagram.
IPV4_BYTES = 28
IPV6_BYTES = 48
MTU_MIN = 576
MTU_MAX = 65_535
#: What receivers accept of an announced stream (`MulticastInfo` has the same limits).
TIME_MAX_S = 86_400.0
STATUS_INTERVAL_MIN_S = 0.001


def split_group(field: str, text: object) -> tuple[str, int]:
    """Group and port from `239.255.7.7:30001` or `[ff02::7]:30001`; raises `ConfigError`."""
    wanted = "write a group and a port: 239.255.7.7:30001 or [ff12::7:7]:30001"
    if not isinstance(text, str):
        raise ConfigError(field, f"{text!r} is not a multicast group: {wanted}")
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(field, f"{text!r} is not a multicast group: {wanted}") from None
    if not colon or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(field, f"{text!r} has no port from 1 to 65535: {wanted}")
    if not address.is_multicast:
        raise ConfigError(field, f"{host} is not a multicast address: {wanted}")
    return str(address), int(port)


@dataclass(frozen=True, slots=True)
class Multicast:
    """UDP multicast with packet numbers, repair on request and flow control.

    A stream takes two ports of its group: `port` carries its packets, the next one requests.

    >>> Multicast("239.255.7.7:30001", parity="16+2").parity
    (16, 2)
    """

    group: str
    """Group and port: `239.255.7.7:30001` or `[ff12::7:7]:30001`."""
    interface: str | None = None
    """Interface to send on, an address or a name; the peer's if not given."""
    ttl: int | None = None
    """Routers that a packet may pass; `None`: 0 on loopback, otherwise 1 (the local network)."""
    second: str | None = None
    """A second group (line B) that carries the same packets; the first copy to come wins."""
    second_interface: str | None = None
    """Interface of the second line; the first line's if not given."""
    request_port: int | None = None
    """Port of the group for repair requests; `None`: the one after the group's."""
    mtu: int = 1500
    """Largest IP packet that the path takes whole."""
    flow: str | None = None
    """`rate`, `fastest` or `slowest`; `None`: `slowest` where the stream waits, else `rate`."""
    rate: int | str = "100MB"
    """Bytes a second with `flow="rate"`; saved-up time may leave as a short burst."""
    repair_rate: int | str = "50MB"
    """Bytes a second for repairs, apart from live packets."""
    repair_age: float | str = "60s"
    """Packets older than this are not sent again, though `buffer_bytes` may still hold them."""
    parity: tuple[int, int] | str | None = None
    """Forward error correction: `"16+2"` adds 2 parity packets to at most 16 data packets."""
    nack_delay: float | str = "200us"
    """A missing packet that comes within this time was only late, and is not asked for."""
    nack_backoff: float | str = "2ms"
    """Random addition to it, times ln(1 + receivers), so that few of many ask; a tenth for one.
    Requests of one receiver are at least so far apart."""
    nack_retry: float | str = "8ms"
    """The first repeat of a request; each further one comes half as much later, up to 200 ms."""
    nack_deadline: float | str = "5s"
    """Without progress for this long, the next way of repair is taken, or the loss declared."""
    linger: float | str = "5ms"
    """A packet just repaired is not repaired again for this long, whoever asks."""
    heartbeat_min: float | str = "10ms"
    """The first heartbeat after data; each following one comes twice as late."""
    heartbeat_max: float | str = "1s"
    """The longest pause between heartbeats."""
    status_interval: float | str = "100ms"
    """How often receivers report at least; with `slowest`, at each quarter of their window, too."""
    receiver_timeout: float | str = "3s"
    """A receiver that did not report for this long, or that packets did not reach for this long
    though it reports, does not count any more. After three report intervals it holds the others up
    only when the buffer is full."""
    receive_buffer: int | str = "8MiB"
    """Receive buffer asked of the system for each subscription and line."""

    def __post_init__(self) -> None:
        group, port = split_group("group", self.group)
        for name in ("interface", "second_interface"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))
        if self.request_port is None:
            if port == 65535:
                raise ConfigError("group", "port 65535 has no next one: give a request_port")
            set_field(self, "request_port", port + 1)
        _integer("request_port", self.request_port, 1, 65535)
        if self.request_port == port:
            raise ConfigError("request_port", "must not be the group's own port")
        if self.second is not None:
            self._check_second(group, port)
        if self.ttl is not None:
            _integer("ttl", self.ttl, 0, 255)
        _integer("mtu", self.mtu, MTU_MIN, MTU_MAX)
        if self.flow is not None:
            one_of("flow", self.flow, FLOW_WORDS)
        for name in ("rate", "repair_rate", "receive_buffer"):
            set_field(self, name, parse_size(name, getattr(self, name)))
        for name in _TIMES:
            seconds = parse_time(name, getattr(self, name))
            if not seconds and name not in ("nack_delay", "nack_backoff", "linger"):
                raise ConfigError(name, "must be more than 0")
            if seconds > TIME_MAX_S:
                raise ConfigError(name, "must be at most a day")
            set_field(self, name, seconds)
        if self.status_interval < STATUS_INTERVAL_MIN_S:  # type: ignore[operator]
            raise ConfigError("status_interval", "must be at least 1ms")
        if self.receive_buffer > RECEIVE_BUFFER_MAX:  # type: ignore[operator]
            raise ConfigError("receive_buffer", f"must be at most {RECEIVE_BUFFER_MAX:,} bytes")
        if self.heartbeat_min > self.heartbeat_max:  # type: ignore[operator]
            raise ConfigError("heartbeat_min", "is greater than heartbeat_max")
        if self.parity is not None:
            set_field(self, "parity", _parity(self.parity))

    def _check_second(self, group: str, port: int) -> None:
        """Line B must not be line A, nor stand where requests go."""
        other, other_port = split_group("second", self.second)
        if (":" in other) != (":" in group):
            raise ConfigError("second", "both groups are of one IP version")
        if other_port == self.request_port:
            problem = f"port {other_port} is for requests: choose another, or a request_port"
            raise ConfigError("second", problem)
        if (other, other_port) == (group, port) and self.second_interface in (None, self.interface):
            raise ConfigError("second", "is the first line again: give another group or interface")

    @property
    def address(self) -> tuple[str, int]:
        """Group and port."""
        return split_group("group", self.group)

    @property
    def packet_bytes(self) -> int:
        """The largest data packet: it fits the MTU, and so does a parity packet over it."""
        size = min(self.mtu, 65_000) - (IPV6_BYTES if ":" in self.address[0] else IPV4_BYTES)
        return size if self.parity is None else size - PARITY_MORE_BYTES


_TIMES = (
    "repair_age",
    "nack_delay",
    "nack_backoff",
    "nack_retry",
    "nack_deadline",
    "linger",
    "heartbeat_min",
    "heartbeat_max",
    "status_interval",
    "receiver_timeout",
)

assert DATA_HEAD.size < MTU_MIN - IPV6_BYTES


def _integer(field: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(field, f"{value!r} is not a whole number from {low} to {high}")


def _parity(value: object) -> tuple[int, int]:
    if isinstance(value, str):
        parts = value.split("+")
        numbers = tuple(int(p) if p.strip().isdecimal() else -1 for p in parts)
    else:
        numbers = tuple(value) if isinstance(value, tuple | list) else ()
    good = len(numbers) == 2 and all(type(n) is int for n in numbers)
    if not good or not (0 < numbers[0] <= PARITY_DATA_MAX and 0 < numbers[1] <= PARITY_EXTRA_MAX):
        raise ConfigError(
            "parity",
            f"{value!r} is not data + parity packets: write '16+2', "
            f"up to {PARITY_DATA_MAX}+{PARITY_EXTRA_MAX}",
        )
    return numbers[0], numbers[1]


@dataclass(frozen=True, slots=True)
class Feed:
    """A multicast stream received without any connection to its publisher: a one-way network.

    >>> Feed("pricing", "quotes.**", Multicast("239.255.7.7:30001")).stream
    'pricing/quotes.**'
    """

    publisher: str
    """Name of the publishing peer."""
    topics: str
    """Pattern of the stream's topics, as the publisher declares it."""
    transport: Multicast
    """Where it is sent; the publisher's own settings, with this side's interface."""
    name: str | None = None
    """The stream's name, where the publisher gave it one."""
    codec: str | Codec = "msgpack"
    """The stream's codec."""

    def __post_init__(self) -> None:
        check_name("publisher", self.publisher)
        try:
            check_pattern(self.topics)
        except TopicError as error:
            raise TopicError("topics", error.problem) from None
        if self.name is not None:
            check_name("name", self.name)
        if not isinstance(self.transport, Multicast):
            raise ConfigError("transport", "write Multicast('239.255.7.7:30001')")
        codec_for(self.codec)

    @property
    def stream(self) -> str:
        """The full name of the stream."""
        return f"{self.publisher}/{self.name or self.topics}"

    @property
    def pattern(self) -> Pattern:
        """The compiled pattern."""
        return Pattern(self.topics)
