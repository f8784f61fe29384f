"""Well-signed packets pass once; all others are counted by what is wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from meshmsg.statsd import signed_packets
from meshmsg.statsd.signed_packets import DRIFT_S, SignedPackets, sign

SECRET = b"secret"


def opened(guard: SignedPackets, *packets: bytes, now: float) -> tuple[list[bytes], Counter[str]]:
    counters: Counter[str] = Counter()
    return guard.open(list(packets), counters, now=now), counters


def test_a_packet_passes_once() -> None:
    guard = SignedPackets(SECRET)
    packet = sign(SECRET, b"a:1|c", now=1000, nonce=1)
    assert opened(guard, packet, packet, now=1000) == ([b"a:1|c"], {"replayed_packets": 1})
    assert opened(guard, packet, now=1002) == ([], {"replayed_packets": 1})


def test_the_same_metrics_with_another_nonce_pass_again() -> None:
    guard = SignedPackets(SECRET)
    packets = [sign(SECRET, b"a:1|c", now=1000, nonce=n) for n in (1, 2, (1 << 32) + 3)]
    assert opened(guard, *packets, now=1000) == ([b"a:1|c"] * 3, {})


def test_every_byte_is_signed() -> None:
    guard = SignedPackets(SECRET)
    packet = sign(SECRET, b"a:1|c", now=1000, nonce=1)
    bad = [packet[:at] + bytes([packet[at] ^ 1]) + packet[at + 1 :] for at in range(len(packet))]
    assert opened(guard, *bad, now=1000) == ([], {"bad_signatures": len(bad)})
    other = sign(b"other", b"a:1|c", now=1000, nonce=1)
    assert opened(guard, other, now=1000) == ([], {"bad_signatures": 1})


@pytest.mark.parametrize("packet", [b"", b"x", b"x" * 44, sign(SECRET, b"", now=1000, nonce=1)])
def test_a_packet_without_metrics_is_refused(packet: bytes) -> None:
    assert opened(SignedPackets(SECRET), packet, now=1000) == ([], {"bad_signatures": 1})


@pytest.mark.parametrize("off", [-DRIFT_S - 1, DRIFT_S + 1])
def test_a_packet_of_another_time_is_stale(off: float) -> None:
    packet = sign(SECRET, b"a:1|c", now=1000 + off, nonce=1)
    assert opened(SignedPackets(SECRET), packet, now=1000) == ([], {"stale_packets": 1})


def test_a_packet_is_known_again_for_as_long_as_it_would_be_good() -> None:
    guard = SignedPackets(SECRET)
    packet = sign(SECRET, b"a:1|c", now=1000 + DRIFT_S, nonce=1)
    assert opened(guard, packet, now=1000)[0]
    for now in (1000.5, 1003.0, 1000 + 2 * DRIFT_S):
        assert opened(guard, packet, now=now) == ([], {"replayed_packets": 1})
    assert opened(guard, packet, now=1000 + 2 * DRIFT_S + 1.5) == ([], {"stale_packets": 1})
    assert not guard._seen


def test_more_packets_than_can_be_known_again_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_packets, "SEEN_MAX", 2)
    guard = SignedPackets(SECRET)
    packets = [sign(SECRET, b"a:1|c", now=1000, nonce=n) for n in range(3)]
    assert opened(guard, *packets, now=1000) == ([b"a:1|c"] * 2, {"replayed_packets": 1})
    later = sign(SECRET, b"a:1|c", now=1020, nonce=9)
    assert opened(guard, later, now=1020)[0] == [b"a:1|c"]
