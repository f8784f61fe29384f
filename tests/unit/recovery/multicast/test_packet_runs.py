"""Packets of one frame in a datagram are one run; every head is looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshmsg._wire.packet import DATA, DATA_HEAD, PACKET_MAGIC, REPAIR
from meshmsg.recovery.multicast.packet_runs import (
    PAYLOAD_AT,
    Run,
    join_runs,
    join_runs_in_python,
    run_length,
    run_length_in_python,
    run_packet,
    run_size,
)

each_length = pytest.mark.parametrize("length", {run_length, run_length_in_python})
each_join = pytest.mark.parametrize("join", {join_runs, join_runs_in_python})
Length = Callable[[bytes, int, int], int]
PAYLOAD = 20
SIZE = PAYLOAD_AT + PAYLOAD


def packet(nth: int, payload: bytes = b"x" * PAYLOAD, **changes: int) -> bytes:
    fields = {"kind": DATA, "flags": 0, "stream": 5, "epoch": 7, "first": 40, "bytes": 90}
    fields |= {"packets": 5, "events": 3, "place": nth, "number": 100 + nth} | changes
    head = DATA_HEAD.pack(
        PACKET_MAGIC,
        fields["kind"],
        fields["flags"],
        fields["place"],
        fields["stream"],
        fields["epoch"],
        fields["number"],
        fields["first"],
        fields["bytes"],
        fields["packets"],
        fields["events"],
    )
    return head + payload


@each_length
def test_packets_that_follow_each_other_are_counted(length: Length) -> None:
    whole = b"".join(packet(n) for n in range(4)) + packet(4, b"last")
    assert length(whole, 0, SIZE) == 5
    assert length(b"before" + whole, 6, SIZE) == 5
    assert length(packet(0), 0, SIZE) == 1


@each_length
def test_a_repair_may_stand_among_them(length: Length) -> None:
    assert length(packet(0) + packet(1, kind=REPAIR), 0, SIZE) == 2


@each_length
@pytest.mark.parametrize(
    "changes",
    [
        {"place": 2},
        {"number": 102},
        {"stream": 6},
        {"epoch": 8},
        {"first": 41},
        {"bytes": 91},
        {"packets": 6},
        {"events": 4},
        {"kind": 0},
        {"kind": REPAIR + 1},
    ],
)
def test_a_packet_that_differs_ends_the_run(length: Length, changes: dict[str, int]) -> None:
    assert length(packet(0) + packet(1, **changes), 0, SIZE) == 1


@each_length
def test_a_run_ends_with_its_frame_and_at_a_packet_without_payload(length: Length) -> None:
    assert length(packet(4) + packet(5), 0, SIZE) == 1
    assert length(packet(0) + packet(1, b""), 0, SIZE) == 1


@each_join
def test_payloads_are_joined_and_the_last_may_be_shorter(
    join: Callable[[list[Run]], bytes],
) -> None:
    parts = [bytes([65 + n]) * PAYLOAD for n in range(3)] + [b"end"]
    data = b"head" + b"".join(packet(n, part) for n, part in enumerate(parts))
    runs: list[Run] = [(2, data, 4, SIZE, 0, ()), (2, data, 4 + 2 * SIZE, SIZE, 2, ())]
    assert join(runs) == b"".join(parts)
    assert join([]) == b""


def test_each_packet_of_a_run_is_found_again() -> None:
    packets = [packet(n) for n in range(3)]
    run: Run = (3, b"head" + b"".join(packets), 4, SIZE, 0, ())
    assert [run_packet(run, n) for n in range(3)] == packets
    assert run_size(run) == 3 * SIZE
