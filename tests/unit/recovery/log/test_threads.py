"""Many threads write one log, on a disk whose syncs fail now and then."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from random import Random

import pytest

from meshmsg._model.errors import LogError
from meshmsg._model.event import Loss
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.files import File, RealFile, RealFiles
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.verify import verify
from meshmsg.recovery.log.writer import LogWriter
from tests.simulation.log_world import STREAM, frame_of

THREADS = 6
FRAMES = 60

pytestmark = pytest.mark.usefixtures("quiet_logs")


class Unreliable(RealFile):
    """A file whose sync fails now and then, and then says that all is well."""

    files: UnreliableFiles

    def sync(self) -> None:
        self.files.maybe_fail()
        super().sync()


class UnreliableFiles(RealFiles):
    def __init__(self, chance: float) -> None:
        self._chance = chance
        self._rng = Random(3)
        self._lock = threading.Lock()
        self.failures = 0
        self.calm = True

    def maybe_fail(self) -> None:
        with self._lock:
            if not self.calm and self._rng.random() < self._chance:
                self.failures += 1
                raise OSError(errno.EIO, "Input/output error")

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        plain = super().open(path, write=write, create=create)
        assert isinstance(plain, RealFile)
        file = Unreliable(os.dup(plain._fd))
        file.files = self
        plain.close()
        return file


@pytest.mark.parametrize("word", ["always", "batch"])
@pytest.mark.parametrize("chance", [0.0, 0.2])
@pytest.mark.parametrize("tail_bytes", [0, 4096])
def test_every_thread_has_kept_all_that_it_was_told_is_safe(
    tmp_path: Path, word: str, chance: float, tail_bytes: int
) -> None:
    files = UnreliableFiles(chance)
    settings = LogSettings(
        fsync=word, segment_bytes=12_000, allocate_bytes=4096, tail_bytes=tail_bytes
    )
    order = threading.Lock()
    written: dict[int, bytes] = {}
    with LogWriter(str(tmp_path), STREAM, settings=settings, files=files) as writer:
        epoch = writer.begin(7)
        files.calm = False

        def publish(name: int) -> None:
            for n in range(FRAMES):
                payload = b"%d:%d" % (name, n) * 20
                with order:
                    first = writer.next
                    try:
                        number = writer.write(frame_of(epoch, first, [payload]), first, first + 1)
                    except LogError:
                        continue  # not taken: the number is free
                    written[first] = payload
                if n % 3 == 0:
                    try:
                        writer.sync(number)
                        assert writer.durable > first
                    except LogError:
                        pass

        threads = [threading.Thread(target=publish, args=(name,)) for name in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        files.calm = True
        writer.flush()
        assert writer.durable == writer.next == len(written)
        assert (writer.counters["rewrites"] > 0) == (files.failures > 0) == (chance > 0)
    found: dict[int, bytes] = {}
    with LogReader(writer.folder.path) as reader:
        reader.seek_earliest()
        for item in reader.runs():
            assert not isinstance(item, Loss), item
            assert item.frame.first == len(found)
            found |= enumerate(item.frame.payloads.split(item.lo, item.hi), len(found))
    assert found == written
    assert verify(writer.folder).is_good
