"""Frames as record batches: the same events as a subscriber would see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshmsg import Batch, Loss, MsgpackCodec
from meshmsg._model.topics import TopicFilter
from meshmsg._wire.frame import Frame, encode_frame, encode_headers
from meshmsg._wire.frame_layout import CHECK_AT, check_of
from meshmsg.recovery.stream.receiver import Run
from meshmsg.spark_sink.source import columns
from meshmsg.spark_sink.source.columns import Gathered, gather, header_row
from meshmsg.spark_sink.source.payloads import blob_of
from tests.spark.logs import STREAM

TOPICS = ("orders.eu", "orders.us", "quotes.A")

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.binary(max_size=9),
        st.integers(-(10**15), 2 * 10**18),
        st.one_of(st.none(), st.text(max_size=3)),
        st.dictionaries(st.text(max_size=2), st.one_of(st.text(max_size=2), st.integers(0, 9))),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


def frame_of(events: list[tuple[Any, ...]], first: int) -> Frame:
    topics, payloads, times, keys, headers, raws = zip(*events, strict=True)
    return Frame(
        encode_frame(
            9,
            1700,
            first,
            list(topics),
            list(payloads),
            list(times),
            raw=bytes(raws),
            keys={i: key for i, key in enumerate(keys) if key is not None},
            headers={i: encode_headers(given) for i, given in enumerate(headers) if given},
        )
    )


def rows_of(found: Gathered) -> list[tuple[Any, ...]]:
    times = found.columns[6].cast("int64")
    arrays = [*found.columns[:6], times, found.payloads]
    flags = b"".join(
        raw if isinstance(raw, bytes) else bytes((raw,)) * count
        for raw, count in zip(found.raw, found.counts, strict=True)
    )
    assert blob_of(found.payloads).tobytes() == b"".join(found.payloads.to_pylist())
    for array in arrays:
        array.validate(full=True)
    return list(zip(*(array.to_pylist() for array in arrays), flags, strict=True))


def expected(run: Run, topics: TopicFilter) -> list[tuple[Any, ...]]:
    batch = Batch(run.frame, STREAM, MsgpackCodec(), run.lo, run.hi)
    return [
        (
            STREAM,
            1700,
            event.seq,
            event.topic,
            event.key,
            header_row(event.headers),
            event.time_ns // 1000,
            event.payload,
            run.frame.is_raw(event.seq - run.frame.first),
        )
        for event in batch
        if topics.matches(event.topic)
    ]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, min_size=1, max_size=4), st.data(), st.sampled_from(["**", "orders.*"]))
def test_columns_say_what_events_say(
    frames: list[list[tuple[Any, ...]]], data: st.DataObject, pattern: str
) -> None:
    topics = TopicFilter([pattern])
    runs = []
    for events in frames:
        frame = frame_of(events, sum(map(len, frames[: len(runs)])))
        lo = data.draw(st.integers(0, frame.count - 1))
        runs.append(Run(frame, lo, data.draw(st.integers(lo + 1, frame.count))))
    found = [row for part in gather(runs, STREAM, topics) for row in rows_of(part)]  # type: ignore[arg-type]
    assert found == [row for run in runs for row in expected(run, topics)]


def test_losses_stay_between_the_events_they_stood_between() -> None:
    event = ("orders.eu", b"x", 5, None, {}, True)
    loss = Loss(STREAM, 1700, 1, 5, "gone")
    items = [Run(frame_of([event], 0), 0, 1), loss, Run(frame_of([event] * 40, 5), 0, 40)]
    found = list(gather(items, STREAM, TopicFilter(["**"])))
    assert [item if isinstance(item, Loss) else item.events for item in found] == [1, loss, 40]


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BATCH_EVENTS", 100)
    event = ("orders.eu", b"x", 5, None, {}, True)
    runs = [Run(frame_of([event] * 30, 30 * n), 0, 30) for n in range(20)]
    found = list(gather(runs, STREAM, TopicFilter(["**"])))
    assert [part.events for part in found if not isinstance(part, Loss)] == [120] * 5


def test_a_key_that_is_no_text_is_read_as_an_event_reads_it(tmp_path: Path) -> None:
    events = [("orders.eu", b"x", 5, "ab", {}, True)] * 40
    frame = frame_of(events, 0)
    data = bytearray(frame.data)
    at = bytes(data).index(b"abab")
    data[at : at + 2] = b"\xff\xfe"
    data[CHECK_AT : CHECK_AT + 4] = check_of(bytes(data)).to_bytes(4, "little")
    run = Run(Frame(bytes(data)), 0, 40)
    (part,) = gather([run], STREAM, TopicFilter(["**"]))
    assert isinstance(part, Gathered)
    assert rows_of(part) == expected(run, TopicFilter(["**"]))
