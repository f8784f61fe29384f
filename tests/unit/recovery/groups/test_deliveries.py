"""Events are packed as whole frames or as parts of them, with their attempts."""

from __future__ import annotations

import pytest

from meshmsg._wire.frame import Frame, encode_frame
from meshmsg._wire.subframe import Work
from meshmsg.recovery.groups.deliveries import FRAMES_CACHED, Parcels
from meshmsg.recovery.groups.numbering import Shelf
from meshmsg.recovery.stream.retransmit_buffer import RetransmitBuffer


def filled(*counts: int) -> tuple[Parcels, RetransmitBuffer]:
    buffer = RetransmitBuffer(1_000_000)
    buffer.claim(0)
    first = 0
    for count in counts:
        payloads = [b"%d" % n for n in range(first, first + count)]
        buffer.append(first, first + count, encode_frame(5, 1, first, "t", payloads, 0))
        first += count
    return Parcels(Shelf(buffer)), buffer


def unpacked(work: Work) -> list[tuple[int, bytes, int]]:
    """Number, payload and attempt of each event."""
    frame = Frame(work.data)
    places = list(range(work.lo, work.hi)) if work.chosen is None else work.chosen
    attempts = work.attempts or [work.attempt] * len(places)
    return [
        (frame.first + n, frame.payloads.at(n), attempt)
        for n, attempt in zip(places, attempts, strict=True)
    ]


def events(*rows: tuple[int, int]) -> list[tuple[int, bytes, int]]:
    return [(seq, b"%d" % seq, attempt) for seq, attempt in rows]


def test_half_of_a_frame_goes_as_the_whole_and_less_is_cut_out() -> None:
    parcels, buffer = filled(10)
    [(start, end, data)] = buffer.held(0, 10)
    whole = parcels.in_a_row(start, end, data, 5, 10)
    assert whole.data is data
    part = parcels.in_a_row(start, end, data, 6, 10)
    assert len(part.data) < len(data)
    for work, first in ((whole, 5), (part, 6)):
        assert unpacked(work) == events(*((seq, 1) for seq in range(first, 10)))


@pytest.mark.parametrize("seqs", [[0], [3, 4], [0, 9], [1, 5, 9], list(range(10)), [2, 12, 15]])
def test_any_events_come_with_their_own_numbers_and_attempts(seqs: list[int]) -> None:
    parcels, _ = filled(10, 10)
    again = {seqs[0]: 3}
    found = [event for work in parcels.chosen(seqs, again) for event in unpacked(work)]
    assert found == events(*((seq, again.get(seq, 1)) for seq in seqs))


def test_events_far_apart_go_in_parts_of_their_own() -> None:
    parcels, _ = filled(1000)
    works = list(parcels.chosen([0, 999], {}))
    assert len(works) == 2
    assert [event for work in works for event in unpacked(work)] == events((0, 1), (999, 1))


def test_the_frame_of_an_event_is_found_with_where_it_begins() -> None:
    parcels, _ = filled(4, 4)
    found = parcels.frame(6)
    assert found is not None
    assert (found[0], found[1].first) == (4, 4)
    assert parcels.frame(8) is None


def test_frames_are_kept_within_a_bound_and_read_again_when_they_changed() -> None:
    parcels, _ = filled(*[1] * (FRAMES_CACHED + 5))
    for seq in range(FRAMES_CACHED + 5):
        parcels.frame(seq)
    assert len(parcels._frames) == FRAMES_CACHED
    longer = encode_frame(5, 1, 20, "t", [b"20", b"21"], 0)
    assert parcels.parsed(20, longer).count == 2
