"""Trials for `meshmsg doctor`: does the system let us do what the sockets of this room do?"""

from __future__ import annotations

import secrets
import socket
import struct
import time

import zmq

from meshmsg.transports.discovery.addresses import why_unreachable
from meshmsg.transports.udp.interfaces import Interface
from meshmsg.transports.zmq.context import Context, milliseconds, unwatch, watch
from meshmsg.transports.zmq.fanout import sub_socket

#: Linux: the MTU that the kernel knows for the way to where a socket is connected.
IP_MTU = 14
ECHO_PORT_RANGE = (20_000, 60_000)


def why_no_data(context: Context, address: str, key: bytes, timeout_s: float) -> str:
    """Connect to a data port as a subscriber does; empty if that works, else the reason in words.

    A connection that says nothing would count as a stranger's there.
    """
    client = sub_socket(context, 1)
    watcher = watch(client, zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        if context.curve is not None:
            context.curve.dial(client, key)
        client.connect(address)
        if watcher.poll(milliseconds(timeout_s)):
            return ""
    finally:
        unwatch(client)
        watcher.close(linger=0)
        client.close(linger=0)
    return why_unreachable(address, timeout_s) or "connected, but nobody shakes hands"


def multicast_echo(interface: Interface, timeout_s: float) -> float:
    """Send a packet to a group on the interface and receive it; returns the seconds it took.

    It does not leave this machine (TTL 0).  Raises `OSError`, `TimeoutError`.
    """
    low, high = ECHO_PORT_RANGE
    port = low + secrets.randbelow(high - low)
    group = f"239.255.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
    own = socket.inet_aton(interface.address)
    payload = secrets.token_bytes(16)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        receiver.bind((group, port))
        member = struct.pack("4s4s", socket.inet_aton(group), own)
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        began = time.perf_counter()
        deadline = began + timeout_s
        sender.sendto(payload, (group, port))
        while True:
            receiver.settimeout(max(0.001, deadline - time.perf_counter()))
            if receiver.recv(64) == payload:
                return time.perf_counter() - began


def granted_buffers(wanted_bytes: int) -> tuple[int, int]:
    """What the system gives when a socket asks for so much: to receive, and to send."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        granted = []
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            probe.setsockopt(socket.SOL_SOCKET, option, wanted_bytes)
            # Linux doubles what was asked for, for its own bookkeeping, and tells the double.
            granted.append(probe.getsockopt(socket.SOL_SOCKET, option) // 2)
    return granted[0], granted[1]


def path_mtu(host: str, port: int) -> int | None:
    """The largest packet for the way to a host, as far as this machine knows; sends nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if family == socket.AF_INET6:
        return None
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
            return int(probe.getsockopt(socket.IPPROTO_IP, IP_MTU))
        except OSError:
            return None
