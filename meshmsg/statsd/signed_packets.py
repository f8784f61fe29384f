"""Brubeck's signed packets: who may send metrics, and that a packet counts once.

A packet is the HMAC-SHA256 (32 bytes) of all that follows, the seconds since 1970 (8 bytes,
little-endian), 4 bytes that make packets of one second different, and the metrics.
"""

from __future__ import annotations

import hmac
import struct
from collections import Counter, deque

MAC_BYTES = 32
HEAD = struct.Struct("<QI")
DRIFT_S = 3.0
#: Packets of the last seconds that are known again; more in that time are refused.
SEEN_MAX = 2_000_000


class SignedPackets:
    """Lets each well-signed packet through once."""

    def __init__(self, secret: bytes, drift_s: float = DRIFT_S) -> None:
        self._secret = secret
        self._drift_s = drift_s
        self._seen: set[bytes] = set()
        self._ages: deque[tuple[float, bytes]] = deque()

    def open(self, packets: list[bytes], counters: Counter[str], *, now: float) -> list[bytes]:
        """The metrics of those that are right; the others are counted by what is wrong."""
        while self._ages and self._ages[0][0] < now - 2 * self._drift_s - 1:
            self._seen.discard(self._ages.popleft()[1])
        good = []
        for packet in packets:
            problem = self._problem(packet, now)
            if problem:
                counters[problem] += 1
            else:
                good.append(packet[MAC_BYTES + HEAD.size :])
        return good

    def _problem(self, packet: bytes, now: float) -> str:
        mac = packet[:MAC_BYTES]
        if len(packet) <= MAC_BYTES + HEAD.size:
            return "bad_signatures"
        expected = hmac.digest(self._secret, memoryview(packet)[MAC_BYTES:], "sha256")
        if not hmac.compare_digest(mac, expected):
            return "bad_signatures"
        if abs(HEAD.unpack_from(packet, MAC_BYTES)[0] - now) > self._drift_s:
            return "stale_packets"
        if mac in self._seen or len(self._seen) >= SEEN_MAX:
            return "replayed_packets"
        self._seen.add(mac)
        self._ages.append((now, mac))
        return ""


def sign(secret: bytes, metrics: bytes, *, now: float, nonce: int) -> bytes:
    """A packet as Brubeck's clients send it."""
    rest = HEAD.pack(int(now), nonce & 0xFFFFFFFF) + metrics
    return hmac.digest(secret, rest, "sha256") + rest
