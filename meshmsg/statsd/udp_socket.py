"""The UDP socket of a StatsD server: datagrams in, many a call, and how many found it full."""

from __future__ import annotations

import logging
import select
import socket
import struct

from meshmsg._model.errors import BindError
from meshmsg.transports.inherited import owned

log = logging.getLogger("meshmsg.transports")

DATAGRAM_BYTES_MAX = 65_535
#: What `setsockopt` takes.
BUFFER_BYTES_MAX = (1 << 31) - 1
#: Linux: nine figures of a socket, the last of which is what it has dropped so far.  Unlike the
#: count that comes with a datagram (SO_RXQ_OVFL) it can be asked for when nothing comes.
SO_MEMINFO = 55
_MEMINFO = struct.Struct("=9I")


class StatsdInlet:
    """Receives datagrams at one address; decides nothing."""

    def __init__(self, host: str, port: int, buffer_bytes: int) -> None:
        self._socket = _bound(host, port)
        try:
            wanted = min(buffer_bytes, BUFFER_BYTES_MAX)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
        except OSError:  # pragma: no cover - a size that the system does not take
            log.warning("the system refuses a receive buffer of %d bytes", buffer_bytes)
        self.granted_bytes = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        if self.granted_bytes < buffer_bytes:
            log.warning(
                "the system grants a receive buffer of %d bytes instead of %d: bursts may be lost "
                "(raise net.core.rmem_max)",
                self.granted_bytes,
                buffer_bytes,
            )
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it is bound to."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def wait(self, timeout_s: float) -> None:
        """Until a datagram is there or the time is up."""
        self._poll.poll(max(0.0, timeout_s) * 1000)

    def receive(self, most: int) -> list[bytes]:
        """The datagrams that are there now, up to so many."""
        packets: list[bytes] = []
        take, keep = self._socket.recv, packets.append
        try:
            for _ in range(most):
                keep(take(DATAGRAM_BYTES_MAX))
        except BlockingIOError:
            pass
        except OSError as error:  # pragma: no cover - such as an ICMP error; the next call goes on
            log.debug("receiving: %s", error)
        return packets

    def kernel_drops(self) -> int | None:
        """Datagrams that found the buffer full since it was opened; `None` if unknown here."""
        try:
            data = self._socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO.size)
            return int(_MEMINFO.unpack(data)[8])
        except (OSError, struct.error):  # pragma: no cover - other systems
            return None

    def close(self) -> None:
        """Free the socket; safe to call again."""
        self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise BindError(f"{host}:{port}", str(error)) from None
    family, kind, proto, _, address = found[0]
    sock = owned(socket.socket(family, kind, proto))
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise BindError(f"{host}:{port}", error.strerror or str(error)) from None
    return sock
