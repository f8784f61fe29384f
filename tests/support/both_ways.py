"""The compiled core and the Python code beside it: the same bytes through both."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

from meshmsg._model import batch as _batch
from meshmsg._model.batch import Batch
from meshmsg._model.codecs import MsgpackCodec
from meshmsg._model.errors import ProtocolError
from meshmsg._wire import frame as _frame
from meshmsg._wire import frame_columns as _frame_columns
from meshmsg._wire.frame import Frame

CODEC = MsgpackCodec()


def read(data: bytes, *, compiled: bool) -> Any:
    """All that a frame says, or why it was refused."""
    with (
        mock.patch.object(_frame, "COMPILED", compiled),
        mock.patch.object(_frame_columns, "COMPILED", compiled),
        mock.patch.object(_batch, "COMPILED", compiled),
    ):
        try:
            frame = Frame(data)
        except ProtocolError as error:
            return f"refused: {error}"
        batch = Batch(frame, "p/a", CODEC)
        cut = Batch(frame, "p/a", CODEC, frame.count // 3, frame.count)
        columns = [frame.payloads, *(c[1] for c in (frame.key_column, frame.header_column) if c)]
        return {
            "header": (frame.stream, frame.epoch, frame.first, frame.stop, frame.count),
            "more": (frame.time, frame.flags, frame.topics, frame.topic_ids, frame.encodings),
            "columns": [(c.offset_bytes, c.blob, c.split(0, c.count)) for c in columns],
            "at": [frame.payload_at(i) for i in {0, frame.count - 1}],
            "headers": [written(frame.headers_at(i)) for i in range(frame.count)],
            "slices": frame.payloads.slice_blob(frame.count // 3, frame.count),
            "batch": (batch.payloads, batch.topics, batch.keys, batch.times_ns),
            "data": written((batch.data, batch.headers)),
            "events": [written((e._data, e._index)) for e in [*batch.events(), *cut.events()]],
        }


def written(value: Any) -> str:
    """As text: a NaN equals nothing, and some types print where they are in memory."""
    return re.sub("0x[0-9a-f]+", "", repr(value))


def check_read_alike(data: bytes) -> None:
    """Both decoders take a frame alike, or refuse it with the same words."""
    assert read(data, compiled=True) == read(data, compiled=False)
