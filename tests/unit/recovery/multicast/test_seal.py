"""Sealed packets: what is opened, once, and what is refused without any other consequence."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from meshmsg._wire.packet import (
    CONFIRM,
    DATA,
    HEARTBEAT,
    NACK,
    PACKET_MAGIC,
    PARITY,
    REPAIR,
    SEAL_BYTES,
    SEALED_HEAD,
    SEALED_MAGIC,
    STATUS,
    packet_kind,
)
from meshmsg.recovery.multicast.replay_window import GAPS_MAX, WINDOW_PACKETS, ReplayWindow
from meshmsg.recovery.multicast.seal import COUNTER_MAX, Opener, Sealer, sender_key
from meshmsg.recovery.multicast.seal_keys import GIVEN_MAX, SealKeys
from tests.support.cores import EPOCH, STREAM, beat, packets_of, sender, split

FROM_SENDER = (DATA, REPAIR, HEARTBEAT, CONFIRM, PARITY)
SENDER = 0xFEDCBA9876543210
SIZE = 200


def key_of(generation: int) -> bytes:
    return generation.to_bytes(4, "big") * 8


def keys(generation: int = 5, *, follows: bool = True) -> SealKeys:
    made = SealKeys(lambda g: (key_of(g),), overlap_s=2.0, follows=follows)
    made.begin(generation, now=0.0)
    return made


def sealer(generation: int = 5, *, who: int = SENDER, stream: int = STREAM) -> Sealer:
    made = Sealer(stream, who)
    made.use(generation, key_of(generation))
    return made


def opener(generation: int = 5, *, lines: int = 1) -> Opener:
    return Opener(STREAM, keys(generation), FROM_SENDER, lines=lines)


def sealed(by: Sealer, packets: list[bytes]) -> list[bytes]:
    return [bytes(by.seal(packet, len(packet))) for packet in packets]


def opened(by: Opener, *packets: bytes, now: float = 0.0, line: int = 0) -> list[bytes]:
    out = [by.open(packet, max(1, len(packet)), now=now, line=line) for packet in packets]
    return [packet for packet in out if packet]


# What is opened ---------------------------------------------------------------------------------


def test_packets_of_all_kinds_come_out_as_they_went_in() -> None:
    some = [*split(sender(3, size=400, parity=(2, 1)).take(now=0.0), None), beat(9)]
    assert {packet_kind(packet) for packet in some} == {DATA, PARITY, HEARTBEAT}
    by, to = sealer(), opener()
    wire = sealed(by, some)
    assert [len(packet) + SEAL_BYTES for packet in some] == [len(packet) for packet in wire]
    assert [packet_kind(packet) for packet in wire] == [packet_kind(packet) for packet in some]
    assert opened(to, *wire) == some
    assert not to.counters


def test_burst_is_sealed_and_opened_at_once() -> None:
    ((burst, size),) = sender(1, size=1000).take(now=0.0)
    assert size < len(burst) != size * (len(burst) // size)  # the last one is shorter
    wire = bytes(sealer().seal(burst, size))
    assert opener().open(wire, size + SEAL_BYTES, now=0.0) == burst


def test_only_kind_and_stream_can_be_read_without_the_key() -> None:
    (packet,) = packets_of(1)
    (wire,) = sealed(sealer(), [packet])
    magic, words, stream, who, number = SEALED_HEAD.unpack_from(wire)
    assert (magic, words, stream, who) == (SEALED_MAGIC, packet[4:8], STREAM, SENDER)
    assert number == 5 << 48
    assert EPOCH.to_bytes(8, "little") not in wire
    assert packet[56:64] not in wire


def test_no_two_packets_share_key_and_nonce() -> None:
    one, other = sealer(), sealer(who=SENDER + 1)
    packets = packets_of(5)
    wire = sealed(one, packets)
    one.use(6, key_of(6))
    wire += sealed(one, packets) + sealed(other, packets)
    assert len({(packet[16:24], packet[20:32]) for packet in wire}) == 15
    bodies = {packet[32:] for packet in wire}
    assert len(bodies) == 15
    assert sender_key(key_of(5), SENDER) != sender_key(key_of(5), SENDER + 1)


def test_sender_that_counted_to_the_end_seals_no_more() -> None:
    by = sealer()
    by.counter = COUNTER_MAX
    with pytest.raises(OverflowError):
        by.seal(beat(1), len(beat(1)))


def test_last_counter_of_all_is_followed_by_none() -> None:
    by, receiver = sealer(0xFFFF), opener(0xFFFF)
    by.counter = COUNTER_MAX - 1
    first = sealed(by, [beat(1)])[0]
    by.counter = -1 + COUNTER_MAX  # what no sender of ours does, and one with the key could
    by._generation_part += 1
    last = sealed(by, [beat(2)])[0]
    assert len(opened(receiver, first, last)) == 2
    assert opened(receiver, last, first) == []
    assert receiver.counters == Counter(replayed=2)


# What is refused --------------------------------------------------------------------------------


def test_packet_is_opened_once() -> None:
    wire = sealed(sealer(), packets_of(3))
    to = opener()
    assert len(opened(to, wire[0], wire[2], wire[0], wire[1], wire[1], wire[2])) == 3
    assert to.counters == {"replayed": 3}


def test_repair_is_a_new_packet() -> None:
    by, to = sealer(), opener()
    packets = packets_of(1)
    assert opened(to, *sealed(by, packets), *sealed(by, packets)) == packets * 2


@pytest.mark.parametrize("at", [0, 5, 7, 8, 24, 32, 60, -1])
def test_changed_packet_is_refused_and_the_true_one_taken(at: int) -> None:
    before, wire = sealed(sealer(), packets_of(2))
    to = opener()
    opened(to, before)
    bad = bytearray(wire)
    bad[at] ^= 1
    assert opened(to, bytes(bad)) == []
    assert to.counters.total() == 1
    assert opened(to, wire)


@pytest.mark.parametrize("size", [0, 1, 31, 48, 49, 60, -1])
def test_cut_packet_is_refused(size: int) -> None:
    before, wire = sealed(sealer(), packets_of(2))
    to = opener()
    opened(to, before)
    assert opened(to, wire[:size]) == []
    assert opened(to, wire)
    assert set(to.counters) <= {"bad_packets", "forged"}


def test_strangers_packets_say_why_they_are_refused() -> None:
    (packet,) = packets_of(1)
    stranger = Sealer(STREAM, 1)
    stranger.use(5, b"another key of 32 bytes, by luck")
    other_stream = sealer(stream=STREAM + 1)
    to = opener()
    (own,) = sealed(sealer(), [packet])
    nack = own[:4] + bytes([NACK]) + own[5:]
    cases = [
        (packet, "unsealed"),
        (sealed(stranger, [packet])[0], "unknown_key"),
        (sealed(sealer(4), [packet])[0], "unknown_key"),
        (sealed(other_stream, [packet[:8] + b"?" * 8 + packet[16:]])[0], "strange_packets"),
        (nack, "strange_packets"),
        (b"?" * 100, "bad_packets"),
    ]
    for wire, why in cases:
        before = Counter(to.counters)
        assert opened(to, wire) == []
        assert to.counters - before == {why: 1}
    assert opened(to, own)


def test_request_of_a_receiver_cannot_be_passed_off_as_the_senders() -> None:
    """Whoever records a request and sends it to the receivers could keep them from asking."""
    receiver = sealer(who=9)
    request = STATUS.to_bytes(1, "little")
    packet = PACKET_MAGIC + request + bytes(3) + STREAM.to_bytes(8, "little") + bytes(40)
    (wire,) = sealed(receiver, [packet])
    to = opener()
    assert opened(to, wire) == []
    assert opened(to, wire[:4] + bytes([CONFIRM]) + wire[5:]) == []
    assert Opener(STREAM, keys(), (NACK, STATUS)).open(wire, len(wire), now=0.0) == packet


def test_bad_packets_in_a_burst_take_no_other_with_them() -> None:
    packets = packets_of(4, size=20)
    wire = sealed(sealer(), packets)
    size = len(wire[0])
    assert {len(packet) for packet in wire} == {size}
    wire[1] = packets[1].ljust(size, b"\0")
    wire[2] = wire[2][:-1] + b"?"
    to = opener()
    assert to.open(b"".join(wire), size, now=0.0) == packets[0] + packets[3]
    assert to.counters == {"unsealed": 1, "forged": 1}


def test_only_the_announced_sender_is_heard_and_nothing_of_before() -> None:
    by, insider = sealer(), sealer(who=1)
    packets = packets_of(4)
    wire = sealed(by, packets)
    to = opener()
    to.listen_to(SENDER, 2)
    assert opened(to, *wire, *sealed(insider, packets)) == packets[2:]
    assert to.counters == {"early_packets": 2, "other_senders": 4}


def test_second_line_brings_copies_and_not_replays() -> None:
    packets = packets_of(4)
    wire = sealed(sealer(), packets)
    to = opener(lines=2)
    assert opened(to, wire[0], wire[1], wire[3], line=0) == [packets[0], packets[1], packets[3]]
    assert opened(to, *wire, line=1) == [packets[2]]
    assert (to.copies, to.counters["replayed"]) == ([0, 3], 0)
    assert opened(to, wire[2], line=0) == []
    assert to.copies == [1, 3]
    opened(to, wire[2], line=0)
    opened(to, *wire, line=1)
    assert to.counters == {"replayed": 5}


# Generations ------------------------------------------------------------------------------------


def test_receiver_follows_its_sender_and_takes_late_packets_of_the_one_before() -> None:
    by, to = sealer(), opener()
    packets = packets_of(4)
    first, late, too_late = sealed(by, packets[:3])
    by.use(6, key_of(6))
    (new,) = sealed(by, packets[3:])
    assert opened(to, first, new, now=10.0) == [packets[0], packets[3]]
    assert (to.keys.generation, to.group_key) == (6, key_of(6))
    assert opened(to, late, now=11.9) == [packets[1]]
    assert opened(to, too_late, now=12.1) == []
    assert to.counters == {"unknown_key": 1}


def test_forged_generation_does_not_begin() -> None:
    by, to = sealer(), opener()
    first, second = sealed(by, packets_of(2))
    opened(to, first)
    bad = bytearray(second)
    bad[30] = 9
    assert opened(to, bytes(bad)) == []
    assert to.keys.generation == 5
    assert to.counters == {"forged": 1}
    assert opened(to, second)


def test_sender_does_not_follow_its_receivers() -> None:
    own = Opener(STREAM, keys(5, follows=False), (DATA,))
    packets = packets_of(3)
    late, ahead = sealer(4, who=1), sealer(6, who=2)
    assert opened(own, *sealed(late, packets[:1]), *sealed(ahead, packets[1:2])) == []
    own.begin(6, now=1.0)
    asked = sealed(sealer(5, who=3), packets)
    assert opened(own, asked[0], now=2.0)
    assert opened(own, asked[1], now=4.0) == []


def test_by_the_clock_alone_neighbours_are_good_until_one_is_heard() -> None:
    for generation, good in ((3, False), (4, True), (5, True), (6, True), (7, False)):
        to = opener()
        to.keys.expect(5)
        wire = sealed(sealer(generation), packets_of(2))
        assert bool(opened(to, *wire)) is good
        assert to.keys.generation == (generation if good else 5)
    to = opener()
    to.keys.expect(5)
    assert opened(to, *sealed(sealer(5), packets_of(1)))
    assert not opened(to, *sealed(sealer(4), packets_of(1)))


def test_generation_is_told_by_its_lowest_bits() -> None:
    near = keys(0x1FFFE)
    assert near.candidates(0x0001) == [(0x20001, key_of(0x20001))]
    assert near.candidates(0xFFFE) == [(0x1FFFE, key_of(0x1FFFE))]
    assert near.candidates(0xFFFD) == []  # past
    near.begin(0x1FFFF, now=0.0)
    assert near.candidates(0xFFFE) == [(0x1FFFE, key_of(0x1FFFE))]
    near.retire(now=2.0)
    assert near.candidates(0xFFFE) == []
    assert SealKeys(overlap_s=1.0).candidates(0) == []


def test_given_key_is_used_when_its_time_comes() -> None:
    given = SealKeys(overlap_s=2.0)
    given.give(5, key_of(5))
    given.begin(5, now=0.0)
    to = Opener(STREAM, given, FROM_SENDER)
    by = sealer()
    packets = packets_of(3)
    assert opened(to, *sealed(by, packets[:1]))
    by.use(6, key_of(6))
    early, later = sealed(by, packets[1:])
    assert opened(to, early) == []
    given.give(6, key_of(6))
    assert opened(to, later) == packets[2:]
    assert (given.generation, to.counters["unknown_key"]) == (6, 1)
    for generation in range(7, 30):
        given.give(generation, key_of(generation))
    assert len(given._given) == GIVEN_MAX


def test_another_mesh_key_is_understood_while_it_is_changed() -> None:
    both = SealKeys(lambda g: (key_of(g), key_of(g + 1000)), overlap_s=2.0)
    both.begin(5, now=0.0)
    to = Opener(STREAM, both, FROM_SENDER)
    old = Sealer(STREAM, 4)
    old.use(5, key_of(1005))
    assert opened(to, *sealed(old, packets_of(2))) == packets_of(2)
    assert to.group_key == key_of(1005)  # what it answers with


# The window -------------------------------------------------------------------------------------


def test_window_takes_each_counter_once_in_any_order() -> None:
    rng = random.Random(3)
    window, taken = ReplayWindow(0), set[int]()
    for _ in range(20_000):
        counter = max(0, window.next + rng.choice((0, 0, 0, 1, 5, -1, -3, -40)))
        assert window.is_new(counter) is (counter not in taken)
        if window.is_new(counter):
            window.take(counter)
            taken.add(counter)


def test_window_is_bounded_however_much_is_lost() -> None:
    window = ReplayWindow(0)
    for counter in range(0, 400_000, 2):
        window.take(counter)
    assert len(window._missing) <= GAPS_MAX
    assert window.is_new(window.next - 2)
    assert not window.is_new(1)
    window.take(10**9)
    window.take(10**9 + 3 * WINDOW_PACKETS)
    assert not window.is_new(10**9 + 1)
    assert window.is_new(10**9 + 3 * WINDOW_PACKETS - 1)


# Anything ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_whatever_comes_is_opened_once_or_counted(seed: int) -> None:
    """Lost, repeated, reordered, changed, cut, unsealed and foreign packets, in bursts."""
    rng = random.Random(seed)
    generation = 5
    by, foreign = sealer(), Sealer(STREAM, rng.getrandbits(64))
    foreign.use(5, rng.randbytes(32))
    to = opener(lines=rng.choice((1, 2)))
    plain = [packet[:-2] + n.to_bytes(2, "big") for n, packet in enumerate(packets_of(1) * 600)]
    seen: list[bytes] = []
    now, given = 0.0, 0
    wire: list[bytes] = []
    for n, packet in enumerate(plain):
        if rng.random() < 0.01:
            generation += 1
            by.use(generation, key_of(generation))
            now += 3.0
        (good,) = sealed(by, [packet])
        (bad,) = sealed(foreign, [packet])
        flipped = bytearray(good)
        flipped[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
        wire += rng.choices(
            ([good], [], [good, good], [bytes(flipped), good], [good, bad], [packet, good]),
            (10, 1, 1, 1, 1, 1),
        )[0]
        if n % 20 == 19:
            if rng.random() < 0.5:
                rng.shuffle(wire)
            size = len(good)
            whole = b"".join(one.ljust(size, b"\0") for one in wire)
            given += len(wire)
            end = rng.choice((0, 0, rng.randrange(size)))  # the last one may be cut
            out = to.open(whole[: len(whole) - end], size, now=now, line=n % len(to.copies))
            seen += [out[at : at + size - SEAL_BYTES] for at in range(0, len(out), len(packet))]
            wire = rng.sample(wire, 3)  # to be replayed
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(plain)
    assert len(seen) > 450
    assert len(seen) + to.counters.total() + sum(to.copies) == given
    assert to.keys.generation == generation


def test_noise_is_counted_and_never_opened() -> None:
    rng = random.Random(1)
    to = opener()
    (good,) = sealed(sealer(), packets_of(1))
    for _ in range(3000):
        noise = rng.randbytes(rng.randrange(1, 120))
        keep = rng.choice((0, 4, 8, 16, 24, 32))
        noise = good[:keep] + noise[keep:]
        assert to.open(noise, rng.randrange(1, 130), now=0.0) == b""
    assert set(to.counters) <= {"bad_packets", "strange_packets", "unknown_key", "forged"}
    assert opened(to, good)
