"""A durable log, read by `struct` alone: see docs/log.md."""

import struct
import tempfile
from pathlib import Path

from meshmsg.recovery.log.writer import LogWriter

DATA_START = 4096


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        write_some(data_dir)
        (segment,) = Path(data_dir).glob("*/*.seg")
        print(segment.relative_to(data_dir))
        for kind, first, stop, content in read_records(segment.read_bytes()):
            if kind == 1:
                print(f"events {first} to {stop - 1} in a frame of {len(content)} bytes")
            elif kind == 3:
                print(f"the end: the next segment would begin with event {first}")


def read_records(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, first, stop and content of each record; the checks are left out."""
    magic, _wire_id, epoch, first = struct.unpack_from("<8sQQQ", data)
    assert magic == b"MMLOG\0\0\1"
    print(f"epoch {epoch}, from event {first} on")
    records = []
    at = DATA_START
    while data[at : at + 4] == b"MMR1":
        length, kind, _, first, stop, _time_ns = struct.unpack_from("<IHHQQq", data, at + 8)
        records.append((kind, first, stop, data[at + 40 : at + 40 + length]))
        at += 40 + length + -length % 8
    return records


def write_some(data_dir: str) -> None:
    """Two frames of two events each, which the log joins: they are small."""
    from meshmsg._wire.control import stream_wire_id
    from meshmsg._wire.frame import encode_frame

    stream = "shop/orders.**"
    wire_id = stream_wire_id("default", stream)
    with LogWriter(data_dir, stream) as log:
        epoch = log.begin(1_700_000_000_000_000)
        for first in (0, 2):
            frame = encode_frame(wire_id, epoch, first, "orders.eu", [b"one", b"two"], 1)
            log.append(frame, first, first + 2)


if __name__ == "__main__":
    main()
