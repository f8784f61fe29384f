"""Sockets that a forked child has copies of, and closes.

A port is taken for as long as any process has a copy of the socket that listens there, and a
connection is up for as long as any has a copy of its end.  A child that lives longer than its
parent would keep the port from the parent's next start, and others from noticing that the parent
has died.  ZeroMQ does not say which descriptors it has; but all sockets of a context wait in one
epoll set, and the one that listens is known by its address.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import zmq

_listening: WeakKeyDictionary[zmq.Context[Any], set[str]] = WeakKeyDictionary()
_plain: WeakSet[socket.socket] = WeakSet()


def note_bound(bound: zmq.Socket[bytes], address: str) -> None:
    """Something of this context listens at an address, for as long as the context is open."""
    _listening.setdefault(bound.context, set()).add(address)


def owned(sock: socket.socket) -> socket.socket:
    """The socket, which children that are forked from now on will not have."""
    _plain.add(sock)
    return sock


def _after_fork() -> None:
    """In a forked child, while its parent goes on."""
    for sock in list(_plain):
        sock.close()
    addresses = {a for context, own in _listening.items() if not context.closed for a in own}
    _listening.clear()
    if addresses:
        for fd in _inherited(addresses):
            with contextlib.suppress(OSError):
                os.close(fd)


os.register_at_fork(after_in_child=_after_fork)


def _inherited(addresses: set[str]) -> set[int]:
    """Sockets that listen at the addresses, and those of the same contexts."""
    descriptors = [int(name) for name in os.listdir("/dev/fd") if name.isdecimal()]
    listening = {fd for fd in descriptors if _address_of(fd) in addresses}
    beside = [fds for fd in descriptors if listening & (fds := _waiting_in(fd))]
    return listening.union(*beside)


def _address_of(fd: int) -> str:
    """Where a socket is bound; empty for what is no socket."""
    try:
        sock = socket.socket(fileno=fd)
    except (OSError, ValueError):
        return ""
    try:
        name = sock.getsockname()
    except OSError:
        return ""
    finally:
        sock.detach()
    if isinstance(name, str):
        return f"ipc://{name}"
    if not isinstance(name, tuple) or len(name) < 2:
        return ""
    host = f"[{name[0]}]" if sock.family == socket.AF_INET6 else name[0]
    return f"tcp://{host}:{name[1]}"


def _waiting_in(fd: int) -> set[int]:
    """The sockets in an epoll set; none for what is none, or where the system does not tell.

    The set is the parent's, too, who goes on adding to it: a number counts only for the socket that
    it stands for there.
    """
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != "anon_inode:[eventpoll]":
            return set()
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as lines:
            waiting = [line.split() for line in lines if line.startswith("tfd:")]
    except OSError:
        return set()
    found = set()
    for words in waiting:
        inode = next((int(word[4:], 16) for word in words if word.startswith("ino:")), -1)
        with contextlib.suppress(OSError):
            target = int(words[1])
            if os.readlink(f"/proc/self/fd/{target}") == f"socket:[{inode}]":
                found.add(target)
    return found
