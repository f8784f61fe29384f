"""DNS-SD over multicast DNS: announce a service, and hear of those of others.

One responder for each set of interfaces and process: all peers of a process share it, and it ends
with the last of them.  The library `zeroconf` has the sockets and a thread of its own; it is
imported by the first that needs it, which takes a moment: not on the thread that opens a peer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf

log = logging.getLogger("meshmsg.discovery")

SERVICE = "_meshmsg._tcp.local."
#: Who dies without a good-bye is forgotten after this time; the default would be 75 minutes.
TTL_S = 120
#: Sent twice, since one datagram may be lost (RFC 6762, 8.3).
AGAIN_S = (0.25, 1.0)
START_S = 9.0
SERVICES_MAX = 4096
LABEL_BYTES_MAX = 63

Records = dict[str, str]


@dataclass(frozen=True, slots=True)
class Service:
    """One announced service: where, and what its TXT record says."""

    name: str
    addresses: tuple[str, ...]
    port: int
    records: Records

    @property
    def targets(self) -> tuple[str, ...]:
        """Where to connect to."""
        hosts = (f"[{host}]" if ":" in host else host for host in self.addresses)
        return tuple(f"tcp://{host}:{self.port}" for host in hosts)


Listener = Callable[[bool, Service], None]
"""Called with true for a service that is there, false for one that has gone; on another thread."""


class Responder:
    """A shared responder on some interfaces of this machine."""

    def __init__(self, interfaces: tuple[str, ...]) -> None:
        import asyncio  # with zeroconf, and not before

        from zeroconf import IPVersion, ServiceBrowser, Zeroconf

        version = IPVersion.V6Only if ":" in interfaces[0] else IPVersion.V4Only
        self.users = 0
        self._lock = threading.Lock()
        self._services: dict[str, Service] = {}
        self._listeners: list[Listener] = []
        self.zc: Zeroconf = Zeroconf(interfaces=list(interfaces), ip_version=version)
        assert self.zc.loop is not None
        started = asyncio.run_coroutine_threadsafe(self.zc.async_wait_for_start(), self.zc.loop)
        started.result(START_S)
        self._browser = ServiceBrowser(self.zc, SERVICE, listener=self)  # type: ignore[arg-type]

    def listen(self, listener: Listener) -> None:
        """Be told of services, those known already first."""
        with self._lock:
            known = list(self._services.values())
            self._listeners.append(listener)
        for service in known:
            listener(True, service)

    def unlisten(self, listener: Listener) -> None:
        """Not any more."""
        with self._lock:
            self._listeners.remove(listener)

    def announce(self, info: ServiceInfo) -> None:
        """Tell everyone of a service, now and again in a moment; answer who asks."""
        loop = self.zc.loop
        assert loop is not None

        def begin() -> None:
            self.zc.registry.async_add(info)
            for delay in (0.0, *AGAIN_S):
                loop.call_later(delay, again)

        def again() -> None:
            if self.zc.registry.async_get_info_name(info.key) is not None:
                self.zc.async_send(self.zc.generate_service_broadcast(info, None))

        loop.call_soon_threadsafe(begin)

    def withdraw(self, info: ServiceInfo) -> None:
        """Say that a service has gone; returns when that was sent."""
        loop = self.zc.loop
        assert loop is not None
        done = threading.Event()

        def end() -> None:
            if self.zc.registry.async_get_info_name(info.key) is not None:
                self.zc.registry.async_remove(info)
                self.zc.async_send(self.zc.generate_service_broadcast(info, 0))
            done.set()

        loop.call_soon_threadsafe(end)
        done.wait(1.0)

    def close(self) -> None:
        """Free sockets and threads."""
        self._browser.cancel()
        self.zc.close()

    # --- called by zeroconf, on the browser's thread ---

    def add_service(self, zc: Zeroconf, kind: str, name: str) -> None:
        """A service was heard of, or has changed."""
        from zeroconf import ServiceInfo

        info: Any = ServiceInfo(kind, name)
        if not info.load_from_cache(zc):
            info = zc.get_service_info(kind, name, 1000)
        if info is None or not info.port or not info.parsed_addresses():
            return
        records = {key: value or "" for key, value in info.decoded_properties.items()}
        service = Service(name, tuple(info.parsed_addresses()), info.port, records)
        with self._lock:
            if name not in self._services and len(self._services) >= SERVICES_MAX:
                return
            self._services[name] = service
        self._tell(True, service)

    update_service = add_service

    def remove_service(self, zc: Zeroconf, kind: str, name: str) -> None:
        """A service said good-bye, or its records ran out."""
        with self._lock:
            service = self._services.pop(name, None)
        if service is not None:
            self._tell(False, service)

    def _tell(self, there: bool, service: Service) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(there, service)

    def known(self) -> list[Service]:
        """All services that are there."""
        with self._lock:
            return list(self._services.values())


_shared: dict[tuple[int, tuple[str, ...]], Responder] = {}
_shared_lock = threading.Lock()


def _after_fork() -> None:
    """In a forked child: whoever held the lock does not exist here."""
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork)


class Beacon:
    """One peer's use of mDNS: its own service, and its ear for the others."""

    def __init__(self, interfaces: tuple[str, ...], listener: Listener) -> None:
        """Raises `OSError` where the system does not let us."""
        self._key = (os.getpid(), interfaces)
        self._listener = listener
        self._info: ServiceInfo | None = None
        with _shared_lock:
            responder = _shared.get(self._key)
            if responder is None:
                responder = _shared[self._key] = Responder(interfaces)
            responder.users += 1
        self._responder = responder
        responder.listen(listener)

    def announce(self, label: str, hosts: tuple[str, ...], port: int, records: Records) -> None:
        """Be found; `label` is unique, `records` go into TXT."""
        from zeroconf import ServiceInfo

        label = label.encode()[:LABEL_BYTES_MAX].decode(errors="ignore")
        self._info = ServiceInfo(
            SERVICE,
            f"{label}.{SERVICE}",
            port=port,
            addresses=[_packed(host) for host in hosts],
            properties=dict(records),
            server=f"{label.rpartition('-')[2]}.meshmsg.local.",
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )
        self._responder.announce(self._info)

    def known(self) -> list[Service]:
        """All services that are there now, our own among them."""
        return self._responder.known()

    def close(self) -> None:
        """Say good-bye; the last of a process frees the sockets."""
        self._responder.unlisten(self._listener)
        if self._info is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended with the interpreter
                self._responder.withdraw(self._info)
        with _shared_lock:
            self._responder.users -= 1
            if self._responder.users:
                return
            _shared.pop(self._key, None)
        with contextlib.suppress(RuntimeError):
            self._responder.close()


def _packed(host: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
