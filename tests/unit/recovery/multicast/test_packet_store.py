"""Frames by the numbers of their packets: what is kept, found, cut and let go of."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import FRAME_BYTES_MAX
from meshmsg._wire.packet import DATA, DATA_HEAD, PACKET_MAGIC, REPAIR, DataHead
from meshmsg.recovery.multicast.packet_store import PacketStore
from tests.support.cores import EPOCH, PACKET_BYTES, STREAM, frame_of

PAYLOAD = PACKET_BYTES - DATA_HEAD.size


def store(bytes_max: int = 1 << 20, age_s: float = 1e9) -> PacketStore:
    return PacketStore(STREAM, EPOCH, PACKET_BYTES, bytes_max, age_s)


def test_empty_store_has_nothing_and_starts_at_zero() -> None:
    kept = store()
    assert (len(kept), kept.first, kept.next, kept.first_event, kept.bytes) == (0, 0, 0, 0, 0)
    assert kept.find(0) is None


def test_packets_of_all_frames_are_numbered_one_after_the_other() -> None:
    kept = store()
    large = kept.append(bytes(3 * PAYLOAD + 1), 0, 5, now=0.0)
    small = kept.append(bytes(10), 5, 6, now=0.0)
    assert (large.first, large.packets) == (0, 4)
    assert (small.first, small.packets) == (4, 1)
    assert (kept.next, kept.next_event) == (5, 6)


@pytest.mark.parametrize(("size", "packets"), [(1, 1), (PAYLOAD, 1), (PAYLOAD + 1, 2)])
def test_frame_that_just_fits_takes_no_packet_more(size: int, packets: int) -> None:
    assert store().append(bytes(size), 0, 1, now=0.0).packets == packets


def test_packet_leads_to_its_frame() -> None:
    kept = store()
    large = kept.append(bytes(3 * PAYLOAD), 0, 5, now=0.0)
    small = kept.append(bytes(10), 5, 6, now=0.0)
    assert [kept.find(n) for n in range(5)] == [large, large, large, small, None]


def test_packets_carry_their_frame_and_their_place() -> None:
    kept = store()
    data = frame_of(40, count=9, size=50)
    kept.append(bytes(PAYLOAD), 39, 40, now=0.0)
    frame = kept.append(data, 40, 49, now=0.0)
    burst = kept.cut(frame, 1, frame.packets, REPAIR)
    packets = [burst[at : at + PACKET_BYTES] for at in range(0, len(burst), PACKET_BYTES)]
    for place, packet in enumerate(packets, start=1):
        assert DataHead(*DATA_HEAD.unpack_from(packet)) == DataHead(
            PACKET_MAGIC, REPAIR, 0, place, STREAM, EPOCH, 1 + place, 40, len(data), 4, 9
        )
    assert b"".join(packet[DATA_HEAD.size :] for packet in packets) == data[PAYLOAD:]


def test_frame_of_one_packet_is_cut_whole() -> None:
    kept = store()
    frame = kept.append(b"x" * 30, 4, 6, now=0.0)
    packet = kept.cut(frame, 0, 1, DATA)
    assert DATA_HEAD.unpack_from(packet)[3:] == (0, STREAM, EPOCH, 0, 4, 30, 1, 2)
    assert packet[DATA_HEAD.size :] == b"x" * 30


def test_largest_frame_fits_the_fields_of_common_packets() -> None:
    kept = PacketStore(STREAM, EPOCH, 1400, 1 << 40, 1e9)
    frame = kept.append(bytes(FRAME_BYTES_MAX), 0, 1, now=0.0)
    assert DATA_HEAD.unpack_from(kept.cut(frame, frame.packets - 1, frame.packets, DATA))


def test_oldest_go_when_there_are_too_many_bytes() -> None:
    kept = store(bytes_max=250)
    for n in range(4):
        kept.append(bytes(100), n, n + 1, now=0.0)
    kept.trim(now=0.0, keep_from=4)
    assert (kept.first, kept.first_event, kept.bytes, len(kept)) == (2, 2, 200, 2)
    assert kept.find(1) is None


def test_oldest_go_when_their_time_is_up() -> None:
    kept = store(age_s=1.0)
    kept.append(bytes(10), 0, 1, now=0.0)
    kept.append(bytes(10), 1, 2, now=0.9)
    kept.trim(now=1.0, keep_from=2)
    assert kept.first == 0
    kept.trim(now=1.01, keep_from=2)
    assert kept.first == 1


def test_newest_stays_however_old_and_large() -> None:
    kept = store(bytes_max=1, age_s=0.0)
    kept.append(bytes(100), 0, 1, now=0.0)
    kept.trim(now=100.0, keep_from=1)
    assert (kept.first, len(kept)) == (0, 1)


def test_nothing_that_is_yet_to_be_sent_goes() -> None:
    kept = store(bytes_max=1)
    for n in range(3):
        kept.append(bytes(3 * PAYLOAD), n, n + 1, now=0.0)
    kept.trim(now=0.0, keep_from=4)  # the second is half sent
    assert kept.first == 3


def test_numbers_hold_through_many_frames() -> None:
    kept = store(bytes_max=1000)
    for n in range(10_000):
        kept.append(bytes(100), n, n + 1, now=0.0)
        kept.trim(now=0.0, keep_from=n)
    assert (kept.first, kept.next, len(kept)) == (9990, 10_000, 10)
    found = kept.find(9995)
    assert found is not None
    assert found.first_event == 9995
    assert len(kept._firsts) < 5000
