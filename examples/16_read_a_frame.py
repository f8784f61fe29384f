"""A frame from the wire, taken apart by `struct` alone: see docs/wire-format.md."""

import struct

from meshmsg import Peer


def main() -> None:
    with (
        Peer("sender") as sender,
        Peer("receiver", connect=sender.address) as receiver,
        receiver.subscribe("**") as events,
    ):
        sender.wait_for_subscribers("numbers", timeout=5)
        sender.publish_many("numbers", [7, "eight", None], keys=["a", None, "c"])
        batch = next(events.batches(timeout=5))
    for row in read_frame(batch.frame.data):  # the bytes as they came
        print(row)


def read_frame(data: bytes) -> list[dict]:
    """Enough for frames of one topic; the checksum is left out."""
    (_stream, magic, _crc, length, count, epoch, first, time_ns) = struct.unpack_from(
        "<Q4sIIIQQq", data
    )
    flags, topic_count, table_bytes, key_bytes, _ = struct.unpack_from("<HHIII", data, 48)
    assert magic == b"MMF1"
    assert length == len(data)
    assert topic_count == 1
    assert flags & ~16 == 0, "a frame with other sections than keys"
    at = 64
    topic = data[at : at + table_bytes].decode()
    at = padded(at + table_bytes)
    keys = [None] * count
    if flags & 16:  # a bitmap of who has a key, then the keys
        bitmap, at = data[at : at + (count + 7) // 8], padded(at + (count + 7) // 8)
        keys, at = read_column(data, at, count, key_bytes)
        keys = [k.decode() if bitmap[i // 8] >> i % 8 & 1 else None for i, k in enumerate(keys)]
    payloads, _ = read_column(data, at, count, None)
    return [
        {"topic": topic, "epoch": epoch, "seq": first + n, "time": time_ns, "key": k, "payload": p}
        for n, (k, p) in enumerate(zip(keys, payloads, strict=True))
    ]


def read_column(data: bytes, at: int, count: int, size: int | None) -> tuple[list[bytes], int]:
    """`count + 1` offsets of 32 bits, then the joined values."""
    offsets = struct.unpack_from(f"<{count + 1}I", data, at)
    at = padded(at + 4 * (count + 1))
    values = [data[at + offsets[n] : at + offsets[n + 1]] for n in range(count)]
    return values, len(data) if size is None else padded(at + size)


def padded(at: int) -> int:
    """Sections start at multiples of 8."""
    return at + -at % 8


if __name__ == "__main__":
    main()
