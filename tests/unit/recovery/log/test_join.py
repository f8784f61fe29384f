"""Small frames that are read as one: the same events as one by one, whatever is in the log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from random import Random
from typing import Any
from unittest import mock

import pytest
from crc32c import crc32c

from meshmsg._model.event import Loss
from meshmsg._native import COMPILED
from meshmsg._wire.frame import CHECK_AT, TOPIC_INDEX, Frame, encode_frame, encode_headers
from meshmsg.recovery.log import join as log_join
from meshmsg.recovery.log import segment as log_segment
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.faults import FaultyFiles
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.format import (
    DATA_START,
    END_RECORD,
    FRAME_RECORD,
    LOSS_RECORD,
    NUMBER_MAX,
    RECORD_HEAD_BYTES,
    SegmentHead,
    SegmentName,
    encode_record,
    salt_of,
)
from meshmsg.recovery.log.join import (
    JOIN_BYTES_MAX,
    JOIN_EVENTS_MAX,
    JOIN_TOPICS_MAX,
    SMALL_BYTES_MAX,
    Joined,
    join_records,
    join_records_in_python,
)
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.segment import Segment
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import DATA, STREAM, WIRE_ID

EPOCH = 7
HEAD = SegmentHead(WIRE_ID, EPOCH, 0, b"saltsalt", 1, 0)
SALT = salt_of(HEAD)
WAYS = [join_records, join_records_in_python] if COMPILED else [join_records_in_python]
each_way = pytest.mark.parametrize("join", WAYS)
Join = Callable[..., Joined | None]


def some_frame(rng: Random, first: int, count: int) -> bytes:
    """A frame with any of its sections."""
    names = rng.choice([["a.b"], ["a.b"], ["a.c", "a.b", "a.münchen"]])
    noted = [i for i in range(count) if rng.random() < 0.5]
    raw: bool | bytes = rng.random() < 0.5
    if rng.random() < 0.3:
        raw = bytes(rng.randrange(2) for _ in range(count))
    return encode_frame(
        WIRE_ID,
        EPOCH,
        first,
        [rng.choice(names) for _ in range(count)],
        [rng.randbytes(rng.choice([0, 1, 8, 64])) for _ in range(count)],
        [rng.getrandbits(40) for _ in range(count)] if rng.random() < 0.5 else 5,
        raw=raw,
        keys={i: rng.choice(["", "k", "schlüssel"]) for i in noted} if rng.random() < 0.3 else None,
        headers={i: encode_headers({"n": i}) for i in noted} if rng.random() < 0.3 else None,
    )


def plain_frame(first: int, topic: str = "a.b", payload: bytes = b"x", epoch: int = EPOCH) -> bytes:
    return encode_frame(WIRE_ID, epoch, first, topic, [payload], first)


def some_frames(rng: Random, most: int, counts: Iterable[int] = (1, 1, 1, 2, 9)) -> list[bytes]:
    frames, first = [], 0
    choice = list(counts)
    for _ in range(rng.randrange(2, most)):
        count = rng.choice(choice)
        frames.append(some_frame(rng, first, count))
        first += count
    return frames


def records_of(frames: Iterable[bytes], offset: int = DATA_START) -> bytes:
    """The frames as records, from an offset of their segment on."""
    data = b""
    for content in frames:
        frame = Frame(content)
        place = (frame.first, frame.stop, frame.time + 1)
        data += b"".join(
            encode_record(SALT, offset + len(data), FRAME_RECORD, *place, content=content)
        )
    return data


def joined(
    join: Join, data: bytes, at: int = 0, first: int = 0, limit: int = NUMBER_MAX
) -> Joined | None:
    return join(data, at, DATA_START + at, segment=HEAD, salt=SALT, first=first, limit=limit)


def events_of(data: bytes) -> list[Any]:
    """All that a frame says of each event."""
    frame = Frame(data)
    return [
        (
            (frame.stream, frame.epoch, frame.first + n),
            (frame.topic_at(n), frame.key_at(n), frame.headers_at(n), frame.time_at(n)),
            (frame.payload_at(n), frame.is_raw(n)),
        )
        for n in range(frame.count)
    ]


# What is joined -----------------------------------------------------------------------------------


@each_way
def test_joined_frame_has_every_event_as_it_was(join: Join) -> None:
    rng = Random(1)
    for _ in range(300):
        frames = some_frames(rng, 20)
        data = records_of(frames)
        found = joined(join, data)
        assert found is not None
        assert events_of(found.frame) == [event for frame in frames for event in events_of(frame)]
        assert (found.first, found.stop, found.size) == (0, Frame(frames[-1]).stop, len(data))
        assert found.time_ns == max(Frame(frame).time + 1 for frame in frames)


@pytest.mark.skipif(not COMPILED, reason="the compiled core is not in use")
def test_both_ways_give_the_same_bytes() -> None:
    rng = Random(2)
    for _ in range(300):
        data = records_of(some_frames(rng, 40, rng.choice([(1,), (1, 2, 9), (1, 100, 300)])))
        at = first = 0
        while (found := joined(join_records, data, at, first)) is not None:
            assert found == joined(join_records_in_python, data, at, first)
            at, first = at + found.size, found.stop
        assert joined(join_records_in_python, data, at, first) is None


@each_way
def test_it_begins_with_the_frame_of_the_event_that_is_wanted(join: Join) -> None:
    rng = Random(3)
    frames = [some_frame(rng, 0, 3), some_frame(rng, 3, 1), some_frame(rng, 4, 1)]
    data = records_of(frames)
    for first in range(3):
        found = joined(join, data, first=first)
        assert found is not None
        assert (found.first, found.stop) == (0, 5)
    assert joined(join, data, first=3) is None, "that record comes before it"
    second = len(records_of(frames[:1]))
    found = joined(join, data, second, first=3)
    assert found is not None
    assert (found.first, found.stop) == (3, 5)
    assert joined(join, data, second, first=2) is None, "what is missing is to be told"


@each_way
def test_it_ends_before_what_begins_at_the_limit(join: Join) -> None:
    data = records_of(map(plain_frame, range(9)))
    for limit in range(12):
        found = joined(join, data, limit=limit)
        assert (1 if found is None else found.stop) == max(1, min(limit, 9))


@each_way
@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(plain_frame(3, epoch=8), id="another epoch"),
        pytest.param(plain_frame(4), id="a gap"),
        pytest.param(plain_frame(2), id="what came before"),
        pytest.param(plain_frame(3, payload=bytes(SMALL_BYTES_MAX)), id="a large frame"),
        pytest.param(encode_frame(5, EPOCH, 3, "a.b", [b"x"], 1), id="another stream"),
    ],
)
def test_it_ends_before_what_is_odd(join: Join, odd: bytes) -> None:
    found = joined(join, records_of([*map(plain_frame, range(3)), odd, plain_frame(4)]))
    assert found is not None
    assert found.stop == 3


@each_way
@pytest.mark.parametrize(
    ("kind", "content"), [(LOSS_RECORD, b"gone"), (END_RECORD, b""), (4, b""), (FRAME_RECORD, b"")]
)
def test_it_ends_before_other_records(join: Join, kind: int, content: bytes) -> None:
    data = records_of(map(plain_frame, range(3)))
    offset = DATA_START + len(data)
    stop = 3 if kind == END_RECORD else 4
    data += b"".join(encode_record(SALT, offset, kind, 3, stop, 1, content))
    found = joined(join, data)
    assert found is not None
    assert found.stop == 3


@each_way
def test_it_has_bounds(join: Join) -> None:
    found = joined(join, records_of(plain_frame(n, payload=bytes(8000)) for n in range(50)))
    assert found is not None
    assert JOIN_BYTES_MAX - 8200 < found.size <= JOIN_BYTES_MAX
    found = joined(join, records_of(plain_frame(n, topic=f"t.{n}") for n in range(600)))
    assert found is not None
    assert found.stop == JOIN_TOPICS_MAX
    many = [encode_frame(WIRE_ID, EPOCH, n, "a", [b""] * 1000, 1) for n in range(0, 20_000, 1000)]
    found = joined(join, records_of(many))
    assert found is not None
    assert found.stop == JOIN_EVENTS_MAX // 1000 * 1000


# What is damaged ----------------------------------------------------------------------------------


def logged(frames: Iterable[bytes], **options: Any) -> FaultyFiles:
    """A log with these frames, that nobody writes any more."""
    files = FaultyFiles(Random(1))
    settings = LogSettings(allocate_bytes=0, tail_bytes=0, **options)
    writer = LogWriter(DATA, STREAM, settings=settings, files=files, background=False)
    writer.open()
    writer.begin(EPOCH)
    for data in frames:
        frame = Frame(data)
        writer.append(data, frame.first, frame.stop)
    writer.close()
    return files


def read(files: FaultyFiles, *, joins: bool) -> list[Any]:
    found: list[Any] = []
    with LogReader(LogFolder.of(DATA, STREAM, files=files), joins=joins) as reader:
        reader.seek_earliest()
        for item in reader.runs():
            if isinstance(item, Loss):
                found.append(item)
            else:
                found += events_of(item.frame.data)[item.lo : item.hi]
    return found


def segment_of(files: FaultyFiles) -> str:
    return next(path for path in files.paths() if path.endswith(".seg"))


@pytest.mark.parametrize("compiled", [COMPILED, False])
def test_damage_anywhere_costs_what_it_costs_one_by_one(compiled: bool) -> None:
    rng = Random(4)
    frames = some_frames(rng, 12)[:7]
    files = logged(frames)
    path = segment_of(files)
    with mock.patch.object(log_join, "COMPILED", compiled):
        whole = read(files, joins=True)
        assert whole == [event for frame in frames for event in events_of(frame)]
        for offset in range(DATA_START, len(files.content(path))):
            bits = 1 << rng.randrange(8)
            files.flip(path, offset, bits)
            assert read(files, joins=True) == read(files, joins=False), (offset, bits)
            files.flip(path, offset, bits)


@pytest.mark.parametrize("compiled", [COMPILED, False])
def test_frames_with_any_content_are_read_as_one_by_one(compiled: bool) -> None:
    """The checks are right, and what they cover is not: as a hostile publisher could have it."""
    rng = Random(5)
    with mock.patch.object(log_join, "COMPILED", compiled):
        for _ in range(1500):
            frames = some_frames(rng, 6)
            files = logged(frames)
            path = segment_of(files)
            offset = DATA_START
            for frame in frames:
                start = offset + RECORD_HEAD_BYTES
                if rng.random() < 0.6:
                    spoil(files, path, start, len(frame), rng)
                offset = start + len(frame) + -len(frame) % 8
            assert read(files, joins=True) == read(files, joins=False)


def spoil(files: FaultyFiles, path: str, start: int, size: int, rng: Random) -> None:
    """Change bytes of a frame, and its check with them."""
    for _ in range(rng.choice([1, 1, 4])):
        at = rng.choice([rng.randrange(20, min(size, 90)), rng.randrange(20, size)])
        files.flip(path, start + at, rng.choice([1, 2, 255, rng.randrange(1, 256)]))
    reseal(files, path, start, size)


def reseal(files: FaultyFiles, path: str, start: int, size: int) -> None:
    """Make a frame's check right."""
    data = files.content(path)[start : start + size]
    check = crc32c(data[CHECK_AT + 4 :], crc32c(data[:CHECK_AT]))
    for n, byte in enumerate(check.to_bytes(4, "little")):
        files.flip(path, start + CHECK_AT + n, data[CHECK_AT + n] ^ byte)


def test_every_bit_of_a_header_is_looked_at() -> None:
    rng = Random(7)
    whole = encode_frame(
        WIRE_ID,
        EPOCH,
        1,
        ["a.b", "a.c", "a.b"],
        [b"1", b"22", b""],
        [1, 2, 3],
        raw=b"\0\1\0",
        keys={1: "k"},
        headers={2: encode_headers({"n": 1})},
    )
    files = logged([plain_frame(0), whole, *map(plain_frame, range(4, 7))])
    path = segment_of(files)
    start = files.content(path).index(whole)
    for at in range(CHECK_AT + 4, len(whole) - 3):
        bits = 1 << rng.randrange(8)
        files.flip(path, start + at, bits)
        reseal(files, path, start, len(whole))
        assert read(files, joins=True) == read(files, joins=False), (at, bits)
        files.flip(path, start + at, bits)


def two_topics_of_one_event() -> bytes:
    """More topics than events, and a column that says which of them it is."""
    data = bytearray(encode_frame(WIRE_ID, EPOCH, 1, "a\nb", [b"x"], 1))
    data[72:72] = bytes(8)
    data[48:52] = struct.pack("<HH", data[48] | TOPIC_INDEX, 2)
    data[16:20] = struct.pack("<I", len(data))
    check = crc32c(data[CHECK_AT + 4 :], crc32c(data[:CHECK_AT]))
    data[CHECK_AT : CHECK_AT + 4] = struct.pack("<I", check)
    return bytes(data)


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(plain_frame(1), id="fewer events than the record says"),
        pytest.param(encode_frame(WIRE_ID, EPOCH, 1, "a\nb", [b"x"] * 2, 1), id="topics too many"),
        pytest.param(two_topics_of_one_event(), id="more topics than events"),
    ],
)
def test_frame_that_is_not_what_it_says_costs_itself(odd: bytes) -> None:
    stop = 2 if odd[50:52] == b"\x02\0" else 3
    data = records_of([plain_frame(0)])
    place = (1, stop, 1)
    data += b"".join(encode_record(SALT, DATA_START + len(data), FRAME_RECORD, *place, odd))
    data += records_of(map(plain_frame, range(stop, 6)), DATA_START + len(data))
    files = logged([])
    folder = LogFolder.of(DATA, STREAM, files=files)
    for path in files.paths():
        if path.startswith(folder.path) and path.endswith(".seg"):
            files.remove(path)
    name = SegmentName(EPOCH, 0, 0)
    files.open(f"{folder.path}/{name.file}", create=True).write_at([HEAD.encode(), data], 0)
    found = read(files, joins=True)
    assert found == read(files, joins=False)
    assert Loss(STREAM, EPOCH, 1, stop, "corrupt") in found
    assert len(found) == 2 + 6 - stop


@pytest.mark.skipif(not COMPILED, reason="the compiled core is not in use")
def test_any_bytes_are_taken_alike_both_ways() -> None:
    rng = Random(6)
    data = records_of(some_frames(rng, 12, (1, 2)))
    for _ in range(3000):
        spoiled = bytearray(data)
        for _ in range(rng.randrange(3)):
            spoiled[rng.randrange(len(data))] = rng.randrange(256)
        cut = bytes(spoiled[: rng.choice([len(data), rng.randrange(len(data))])])
        at = rng.choice([0, 0, rng.randrange(len(data))])
        first = rng.choice([0, 0, rng.randrange(20)])
        ways = [joined(join, cut, at, first) for join in WAYS]
        assert ways[0] == ways[1]


def test_malformed_topic_costs_one_event_and_is_looked_at_once() -> None:
    frames = list(map(plain_frame, range(300)))
    topic = frames[150].index(b"a.b") + RECORD_HEAD_BYTES + DATA_START
    files = logged(frames)
    place = 150 * (RECORD_HEAD_BYTES + len(frames[150]) + -len(frames[150]) % 8)
    files.flip(segment_of(files), topic + place + 2, ord("b") ^ ord("."))
    reseal(files, segment_of(files), DATA_START + place + RECORD_HEAD_BYTES, len(frames[150]))
    looks = mock.patch.object(
        log_segment, "topics_are_good", side_effect=log_segment.topics_are_good
    )
    with looks as look:
        found = read(files, joins=True)
    assert found == read(files, joins=False)
    assert len(found) == 300
    assert found[150] == Loss(STREAM, EPOCH, 150, 151, "corrupt")
    assert look.call_count <= 2


# Where it is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("takes_over", [1, 10, 19])
def test_later_term_takes_over_where_it_begins(takes_over: int) -> None:
    """Frames that a later segment replaced are not joined to those before it."""
    files = logged(map(plain_frame, range(20)))
    folder = LogFolder.of(DATA, STREAM, files=files)
    head = HEAD._replace(first=takes_over, term=1)
    name = SegmentName(EPOCH, 1, takes_over)
    news = [plain_frame(n, payload=b"new") for n in range(takes_over, 25)]
    parts = [head.encode(), records_of(news)]
    files.open(f"{folder.path}/{name.file}", create=True).write_at(parts, 0)
    found = read(files, joins=True)
    assert found == read(files, joins=False)
    payloads = [event[2][0] for event in found]
    assert payloads == [b"x"] * takes_over + [b"new"] * (25 - takes_over)


def test_reader_at_the_live_edge_gets_what_is_whole() -> None:
    files = FaultyFiles(Random(1))
    writer = LogWriter(
        DATA, STREAM, settings=LogSettings(tail_bytes=0), files=files, background=False
    )
    writer.open()
    writer.begin(EPOCH)
    with LogReader(writer.folder) as reader:
        reader.seek(EPOCH, 0)
        for turn in range(1, 6):
            for _ in range(turn):
                writer.append(plain_frame(writer.next), writer.next, writer.next + 1)
            runs = list(reader.runs())
            assert [(run.frame.count, run.hi) for run in runs if not isinstance(run, Loss)] == [
                (turn, turn)
            ]
            assert reader.next == writer.next
    writer.close()


def test_segment_without_a_head_joins_nothing() -> None:
    files = logged(map(plain_frame, range(3)))
    folder = LogFolder.of(DATA, STREAM, files=files)
    (name,) = folder.segments()
    for at in (0, 2048):
        files.flip(f"{folder.path}/{name.file}", at)
    segment = Segment.open(files, folder.path, name)
    assert segment.joined(DATA_START, 0, NUMBER_MAX) is None
