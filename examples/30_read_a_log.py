"""A durable log, read by `struct` alone: see docs/log.md."""

import struct
import tempfile
from pathlib import Path

from meshmsg import Peer, Stream

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
    """Two batches of two events each, which the log joins: they are small."""
    with Peer("shop", streams=Stream("orders.**", durability="log"), data_dir=data_dir) as peer:
        for _ in range(2):
            peer.publish_many("orders.eu", [b"one", b"two"])


if __name__ == "__main__":
    main()
