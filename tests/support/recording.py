"""Logs that a recorder keeps, with frames written by hand."""

from __future__ import annotations

from pathlib import Path

from meshmsg import Loss
from meshmsg._replay.recorded_log import RecordedLog
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.stream.receiver import Run

MESH = "test"
STREAM = "pub/a.**"
WIRE_ID = stream_wire_id(MESH, STREAM)


def run_of(epoch: int, first: int, stop: int, size: int = 1, wire_id: int = WIRE_ID) -> Run:
    """Events of the topic `a.b`, as a subscription gets them."""
    payloads = [b"%d" % n + bytes(size - 1) for n in range(first, stop)]
    return Run(Frame(encode_frame(wire_id, epoch, first, "a.b", payloads, 1)), 0, stop - first)


def recorded(data_dir: Path, stream: str = STREAM, topics: str = "a.**") -> RecordedLog:
    """An open log, to be closed by its `writer`."""
    settings = LogSettings(fsync="never")
    log = RecordedLog(
        str(data_dir), stream, topics=topics, codec="msgpack", mesh=MESH, settings=settings
    )
    log.open()
    return log


def record(log: RecordedLog, epoch: int, *ranges: tuple[int, int], lost: bool = False) -> None:
    """A frame for each range, or a loss."""
    wire_id = stream_wire_id(MESH, log.stream)
    for first, stop in ranges:
        loss = Loss(log.stream, epoch, first, stop, "overflow")
        log.put(epoch, 0, loss if lost else run_of(epoch, first, stop, wire_id=wire_id))
