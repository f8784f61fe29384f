"""How these logs were made, by the version of 18 November 2026: not to be run again.

    python tests/data/golden-log-1/make.py tests/data/golden-log-1

`shop` is the data folder of a publisher, `recorder` that of a recorder: `orders.**` was published
one event at a time, so that each is a frame of its own, and in batches, in three epochs.  The
folder was copied while its writer had the last epoch open, as `kill -9` leaves it, without the
zeros of space that was only reserved.  The recorder's log has losses and parts of frames.
`events.jsonl` has every event and loss as that version read them.
"""

import base64
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from meshmsg import Loss, Peer, Stream
from meshmsg._replay.recorded_log import RecordedLog
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.stream.receiver import Run

ORDERS = Stream("orders.**", durability="log", segment_bytes="64KiB")
STREAM = "shop/orders.**"
TOPICS = ("orders.eu", "orders.us", "orders.münchen.new")


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        shop, recorder = f"{folder}/shop", f"{folder}/recorder"
        for name, publish in (("plain", plain), ("mixed", mixed), ("open", batches)):
            with (
                Peer("shop", streams=[ORDERS], data_dir=shop) as peer,
                Peer("rec", record="orders.**", data_dir=recorder, connect=peer.address) as rec,
            ):
                count = publish(peer)
                wait_until_recorded(rec, count)
                if name == "open":
                    shutil.copytree(shop, target / "shop")
        damage_recorded(recorder)
        shutil.copytree(recorder, target / "recorder")
    for segment in target.glob("*/*/*.seg"):
        used = segment.read_bytes().rstrip(b"\0")
        with open(segment, "r+b") as file:
            file.truncate(len(used) + -len(used) % 8)
    for lock in target.glob("**/lock"):
        lock.unlink()
    with open(target / "events.jsonl", "w") as file:
        for data in ("shop", "recorder"):
            for row in rows(target / data):
                file.write(json.dumps([data, *row], ensure_ascii=False) + "\n")


def plain(peer: Peer) -> int:
    for n in range(420):
        peer.publish("orders.eu", b"order %d " % n + b"x" * (n % 70))
    return 420


def mixed(peer: Peer) -> int:
    """One at a time, with all that an event can have."""
    for n in range(240):
        data = {"order": n, "price": n / 4} if n % 3 else b"raw %d" % n
        key = f"customer-{n % 7}" if n % 4 == 1 else "" if n % 50 == 2 else None
        headers = {"trace": n, "place": "Köln"} if n % 5 == 3 else None
        peer.publish(TOPICS[n // 10 % 3], data, key=key, headers=headers)
    return 240


def batches(peer: Peer) -> int:
    count = 0
    for size in (1, 2, 40, 3):
        peer.publish_many("orders.us", [{"batch": size, "n": n} for n in range(size)])
        peer.publish("orders.eu", "between batches", key="k")
        peer.publish_many(TOPICS[2], [b"%d" % n for n in range(size)])
        count += 2 * size + 1
    for n in range(60):
        peer.publish("orders.us", b"" if n % 9 == 4 else [n, None, True])
    return count + 60


def wait_until_recorded(recorder: Peer, count: int) -> None:
    while not (s := recorder.stats()["recorder"]["streams"]) or s[0]["events"] < count:
        time.sleep(0.01)


def damage_recorded(data_dir: str) -> None:
    """What a recorder writes that missed something, as a recorder does."""
    settings = LogSettings(segment_bytes=64 * 1024)
    log = RecordedLog(
        data_dir, STREAM, topics="orders.**", codec="msgpack", mesh="default", settings=settings
    )
    log.open()
    epoch, wire_id = log.place[0] + 1_000_000, stream_wire_id("default", STREAM)
    for first in range(5, 25):
        frame = Frame(encode_frame(wire_id, epoch, first, "orders.eu", [b"%d" % first], first))
        log.put(epoch, 5, Run(frame, 0, 1))
    log.put(epoch, 5, Loss(STREAM, epoch, 25, 31, "overflow"))
    payloads = [b"%d" % n for n in range(28, 48)]
    frame = Frame(encode_frame(wire_id, epoch, 28, "orders.eu", payloads, range(28, 48)))
    log.put(epoch, 5, Run(frame, 3, 18))
    log.put(epoch, 5, Loss(STREAM, epoch, 46, 47, "gone"))
    log.put(epoch, 5, Run(frame, 19, 20))
    log.writer.close()


def rows(data_dir: Path):
    with LogReader(LogFolder.of(str(data_dir), STREAM)) as reader:
        reader.seek_earliest()
        for item in reader.runs():
            if isinstance(item, Loss):
                yield "loss", item.epoch, item.first, item.stop, item.reason
                continue
            frame = item.frame
            for n in range(item.lo, item.hi):
                payload = base64.b64encode(frame.payload_at(n)).decode()
                notes = (
                    frame.key_at(n),
                    dict(frame.headers_at(n)),
                    frame.time_at(n),
                    frame.is_raw(n),
                )
                yield "event", frame.epoch, frame.first + n, frame.topic_at(n), payload, *notes


if __name__ == "__main__":
    main()
