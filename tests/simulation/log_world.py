"""A log on a disk that fails and crashes, and a model of what was promised to whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from meshmsg._model.errors import LogError
from meshmsg._model.event import Loss
from meshmsg._model.log_policy import Retention
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from meshmsg.recovery.log.appender import LogSettings
from meshmsg.recovery.log.faults import Crashed, Faults, FaultyFiles
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.log.writer import LogWriter

DATA = "/data"
STREAM = "pricing/orders.**"
WIRE_ID = stream_wire_id("default", STREAM)
Place = tuple[int, int]


def frame_of(epoch: int, first: int, payloads: list[bytes], time_ns: int = 1) -> bytes:
    return encode_frame(WIRE_ID, epoch, first, "orders.eu", payloads, time_ns)


def items_of(files: FaultyFiles, start: Place | None = None) -> list[object]:
    """All that a reader finds: places with payloads, and losses."""
    found: list[object] = []
    with LogReader(LogWriter(DATA, STREAM, files=files).folder) as reader:
        if start is None:
            reader.seek_earliest()
        else:
            reader.seek(*start)
        for item in reader.runs():
            if isinstance(item, Loss):
                found.append(item)
                continue
            payloads = item.frame.payloads.split(item.lo, item.hi)
            first = item.frame.first + item.lo
            found += [((item.frame.epoch, first + n), p) for n, p in enumerate(payloads)]
    return found


@dataclass
class World:
    """One log through several lives."""

    seed: int
    growth: int = 1
    rng: Random = field(init=False)
    written: dict[Place, bytes] = field(default_factory=dict)
    """All that may be there; the last payload where a number was tried again."""
    unsure: dict[Place, bytes] = field(default_factory=dict)
    """What a crash interrupted: there or not."""
    refused: dict[Place, bytes] = field(default_factory=dict)
    """What was refused and could not be cut off: the next life may find it."""
    acked: set[Place] = field(default_factory=set)
    kernel: set[Place] = field(default_factory=set)
    """Taken and not lost to a power failure since."""
    epochs: list[int] = field(default_factory=list)
    origin: Place | None = None
    retained: bool = False

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.files = FaultyFiles(self.rng)
        rng = self.rng
        self.settings = LogSettings(
            fsync=rng.choice(["always", "batch", "never"]),
            segment_bytes=rng.choice([4096 + 600, 9000, 40_000]),
            allocate_bytes=rng.choice([0, 4096, 10_000]),
            unsynced_bytes_max=rng.choice([2000, 1_000_000]),
            retention=Retention(bytes_max=rng.choice([None, 30_000])),
            tail_bytes=rng.choice([0, 1024, 4096, 16_384]),
            tail_growth=self.growth,
        )
        self.retained = self.settings.retention.bytes_max is not None

    def live(self) -> None:
        """One life of the writer, up to a crash or a proper end; then look at what is left."""
        files, rng = self.files, self.rng
        files.faults = Faults(crash_after=rng.choice([None, rng.randrange(150), rng.randrange(40)]))
        power = rng.random() < 0.6
        try:
            self._write_some()
        except Crashed:
            pass
        self.files = files.survivor(power=power)
        if power:
            self.kernel &= self.acked
        self.check()

    def _write_some(self) -> None:
        rng = self.rng
        clock = rng.randrange(1, 1000)
        writer = LogWriter(
            DATA,
            STREAM,
            settings=self.settings,
            files=self.files,
            clock=lambda: clock,
            background=False,
        )
        writer.open()
        epoch = writer.begin(rng.choice([clock, clock * 1000]))
        assert all(epoch > old for old in self.epochs), "an epoch was used twice"
        self.epochs.append(epoch)
        self.origin = self.origin or (epoch, 0)
        for _ in range(rng.randrange(60)):
            self._act(writer, epoch)
            if rng.random() < 0.1:
                self._change_faults()
        if rng.random() < 0.5:
            self._calm()
            writer.close()
            self._ack(epoch, writer, closed=True)

    def _change_faults(self) -> None:
        rng, faults = self.rng, self.files.faults
        rates = [0.0, 0.0, 0.0, 0.1, 0.5]
        faults.short_write, faults.write_error = rng.choice(rates), rng.choice(rates)
        faults.sync_error, faults.truncate_error = rng.choice(rates), rng.choice(rates)
        used = self.files.used_bytes()
        faults.capacity_bytes = rng.choice([None, None, used, used + 3000])

    def _calm(self) -> None:
        self.files.faults = Faults(crash_after=self.files.faults.crash_after)

    def _act(self, writer: LogWriter, epoch: int) -> None:
        rng = self.rng
        try:
            match rng.choice(["write", "write", "write", "write", "sync", "work", "retain"]):
                case "write":
                    self._write(writer, epoch)
                case "work":
                    writer.work()
                    self._ack(epoch, writer)
                case "sync":
                    writer.flush()
                    self._ack(epoch, writer)
                case "retain":
                    writer.retain()
        except LogError:
            pass

    def _write(self, writer: LogWriter, epoch: int) -> None:
        rng = self.rng
        count = rng.randrange(1, 5)
        size = rng.choice([0, 10, 100, 1000])
        payloads = [rng.randbytes(rng.randrange(size + 1)) for _ in range(count)]
        first = writer.next
        places = {(epoch, first + n): payload for n, payload in enumerate(payloads)}
        self.unsure = places
        try:
            writer.write(frame_of(epoch, first, payloads), first, first + count)
        except LogError:
            if writer.next == first:  # not taken: the numbers will be used again
                self.unsure = {}
                if not writer._open()._active.torn:
                    self.refused = {}
                elif not self.refused:
                    self.refused = places
                return
        self.unsure = self.refused = {}
        self.written |= places
        self.kernel |= places.keys()
        if self.settings.fsync == "always":
            writer.flush()
            self._ack(epoch, writer)

    def _ack(self, epoch: int, writer: LogWriter, closed: bool = False) -> None:
        if self.settings.fsync == "never":
            return
        stop = 1 << 62 if closed else writer.durable
        self.acked |= {place for place in self.written if place[0] == epoch and place[1] < stop}

    def check(self) -> None:
        """Everything acknowledged is there once and in order; nothing else than was written is."""
        for _ in range(2):  # as the crash left it, and after it was opened for writing again
            self._check_once()
            writer = LogWriter(DATA, STREAM, files=self.files, background=False)
            writer.open()
            writer.close()

    def _check_once(self) -> None:
        if self.origin is None:
            return
        try:
            items = items_of(self.files, self.origin)
        except LogError:
            assert not self.acked
            return
        known = self.written | self.unsure
        last = (0, 0)
        lost: list[Loss] = []
        found: set[Place] = set()
        for item in items:
            if isinstance(item, Loss):
                lost.append(item)
                assert (item.epoch, item.first) >= last
                last = (item.epoch, item.stop)
                continue
            place, payload = item  # type: ignore[misc]
            assert place >= last
            last = (place[0], place[1] + 1)
            if self.refused.get(place) == payload:
                known[place] = payload
            assert known.get(place) == payload, f"{place} has another event"
            found.add(place)
        missing = (self.acked | self.kernel) - found
        for loss in lost:
            gone = {p for p in missing if p[0] == loss.epoch and loss.first <= p[1] < loss.stop}
            assert not gone or (loss.reason == "expired" and self.retained), (loss, sorted(gone))
            missing -= gone
        assert not missing, f"acknowledged and not there: {sorted(missing)[:5]}"
        self.written, self.unsure, self.refused = known, {}, {}


def simulate(seed: int, lives: int = 5, growth: int = 1) -> None:
    """Several lives of a log, whose tail may grow; raises `AssertionError` that names the seed."""
    world = World(seed, growth)
    try:
        for _ in range(lives):
            world.live()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def closed_log(seed: int) -> tuple[FaultyFiles, dict[Place, bytes]]:
    """A log of a few epochs and segments, whole and closed, and what is in it."""
    rng = Random(seed)
    files = FaultyFiles(rng)
    events: dict[Place, bytes] = {}
    settings = LogSettings(
        segment_bytes=rng.choice([6000, 20_000]), allocate_bytes=4096, tail_bytes=0
    )
    for _ in range(rng.randrange(1, 4)):
        writer = LogWriter(DATA, STREAM, settings=settings, files=files, background=False)
        writer.open()
        epoch = writer.begin(1)
        for _ in range(rng.randrange(1, 25)):
            first = writer.next
            payloads = [rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 6))]
            writer.append(frame_of(epoch, first, payloads), first, first + len(payloads))
            events |= {(epoch, first + n): payload for n, payload in enumerate(payloads)}
        writer.close()
    return files, events
