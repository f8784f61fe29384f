"""What a recorder gives to others: repairs and replay of streams that are not its own.

The third rung of the repair ladder.  Answers come from the logs, on a thread of their own.  Those
who read a stream here are told how far it is and of new epochs, as a publisher would tell them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from meshmsg._model.config import PeerConfig
from meshmsg._replay.log_reads import Replay
from meshmsg._replay.log_server import LogEntry
from meshmsg._replay.recorded_log import RecordedLog
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._wire import control as c
from meshmsg.recovery.log.journal import Journal
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.stream.quotas import Owner, Quota

#: Readers are told how far a stream is this often, at most.
TELL_S = 0.05
#: Streams that are read here, by all subscriptions and by those of one peer.
READERS_MAX = 100_000
READERS_EACH_MAX = 20_000
NEVER = float("inf")


class Lender:
    """Serves the recorded streams of one peer."""

    def __init__(
        self,
        config: PeerConfig,
        instance: int,
        control: ControlSender,
        wake: Callable[[], None],
        announce: Callable[[], None],
        is_subscription: Callable[[int], bool],
    ) -> None:
        self.logs: dict[str, RecordedLog] = {}  #: by stream; the recorder adds to them
        self._instance = instance
        self._control = control
        self._counters = control.counters
        self._wake = wake
        self._is_subscription = is_subscription  # to streams of this peer itself
        self._repair_bytes_max = config.tuning.repair_bytes_max
        self.on_new_stream = announce  #: tells everyone that another stream can be had here
        self._replay = Replay(f"meshmsg-{config.name} lender", control.counters)
        self.guard = self._replay.guard
        self._readers: dict[tuple[bytes, int, str], int] = {}  # to the epoch that they know of
        self._owners: dict[bytes, Owner] = {}  # of connections that read
        self.quota = Quota(READERS_EACH_MAX, READERS_MAX)
        self._written = False
        self._tell_due = 0.0

    def stop(self) -> None:
        """End the thread."""
        self._replay.stop()

    # --- the recorder's thread ---

    def on_written(self) -> None:
        """There is more than before."""
        if not self._written:
            self._written = True
            self._wake()

    # --- what is told ---

    def names(self) -> list[str]:
        """The streams."""
        return list(self.logs)

    def log_of(self, stream: str) -> RecordedLog | None:
        """The log of a stream, if it is recorded here."""
        return self.logs.get(stream)

    def infos(self) -> list[c.StreamInfo]:
        """The streams as they are announced."""
        return [recorded.info() for recorded in list(self.logs.values())]

    def tails(self) -> list[c.Tail]:
        """How far each is."""
        return [
            c.Tail(recorded.stream, epoch, 0, seq)
            for recorded in list(self.logs.values())
            for epoch, seq in [recorded.place]
            if epoch
        ]

    def entries(self) -> list[LogEntry]:
        """The logs, for those who read them by position."""
        return [
            LogEntry(r.stream, r.topics, r.codec, r.folder, *r.place, recorded=True)
            for r in list(self.logs.values())
            if r.place[0]
        ]

    # --- the I/O thread ---

    def on_tick(self, now: float) -> float:
        """Tell readers how far their streams are; returns when to come again."""
        if not self._written:
            return NEVER
        if now < self._tell_due:
            return self._tell_due
        self._written = False
        self._tell_due = now + TELL_S
        tails = {tail.stream: tail for tail in self.tails()}
        wanted: dict[bytes, dict[str, None]] = {}
        for identity, _, stream in self._readers:
            wanted.setdefault(identity, {})[stream] = None
        for identity, streams in wanted.items():
            some = [tails[stream] for stream in streams if stream in tails]
            self._control.post_pages(identity, self._pong, some)
        for (identity, sub, stream), known in list(self._readers.items()):
            if self.logs[stream].place[0] > known:
                self._readers[identity, sub, stream] = self.logs[stream].place[0]
                start = c.Start(stream, "resume", 0, known)
                self._submit(identity, sub, start, again=True)
        return NEVER

    def _pong(self, tails: list[c.Tail], _: c.Page) -> c.Pong:
        return c.Pong(0, self._instance, [], tails)

    def on_request(self, identity: bytes, message: c.Message) -> c.Message | None:
        """See to what concerns recorded streams; returns what is left for the publishing side."""
        logs = self.logs
        if isinstance(message, c.Nack) and message.stream in logs:
            self._on_nack(identity, message)
            return None
        if isinstance(message, c.Subscribe):
            self._on_subscribe(identity, message)
            starts = [start for start in message.starts if start.stream not in logs]
            return replace(message, starts=starts) if starts else None
        if isinstance(message, c.Status):
            figures = [figures for figures in message.figures if figures.stream not in logs]
            lent = len(figures) < len(message.figures)
            if message.closed and self._close(identity, message.sub):
                lent = True
            if lent and not (figures or message.answers or self._is_subscription(message.sub)):
                return None
            return replace(message, figures=figures)
        return message

    def _on_subscribe(self, identity: bytes, message: c.Subscribe) -> None:
        """Somebody wants to read streams here."""
        owner = self._control.owner_of(identity)
        refused = []
        for start in message.starts:
            if start.stream not in self.logs:
                continue
            key = (identity, message.sub, start.stream)
            if key not in self._readers:
                if not self._make_room(owner):
                    refused.append(start.stream)
                    continue
                self._owners[identity] = owner
                self.quota.take(owner)
            self._readers[key] = self.logs[start.stream].place[0]
            self._submit(identity, message.sub, start)
        if refused:
            self._counters["lender_readers_full"] += len(refused)
            self._tell(identity, message.sub, refused, "no room: you read too many streams here")

    def _make_room(self, owner: Owner) -> bool:
        """Return False when there is no place for another reader."""
        giver = self.quota.giver(owner)
        if giver is not None and giver != owner:
            last = next(k for k in reversed(self._readers) if self._owners[k[0]] == giver)
            self._drop(last)
            self._counters["lender_readers_displaced"] += 1
            self._tell(last[0], last[1], [last[2]], "others need the room")
        return giver is not None

    def _tell(self, identity: bytes, sub: int, streams: list[str], reason: str) -> None:
        self._control.post_pages(
            identity, lambda some, _: c.Unsubscribed(sub, some, reason), streams
        )

    def _drop(self, key: tuple[bytes, int, str]) -> None:
        del self._readers[key]
        self.quota.free(self._owners[key[0]])

    def _submit(self, identity: bytes, sub: int, start: c.Start, *, again: bool = False) -> None:
        job = partial(self._admit, identity, sub, start, again)
        self._replay.submit(("admit", identity, sub, start.stream, again), job)

    def _close(self, identity: bytes, sub: int) -> bool:
        """A subscription ends; whether it read anything here."""
        mine = [key for key in self._readers if key[:2] == (identity, sub)]
        for key in mine:
            self._drop(key)
        return bool(mine)

    def forget(self, identity: bytes) -> None:
        """A peer is gone."""
        for key in [key for key in self._readers if key[0] == identity]:
            self._drop(key)
        self._owners.pop(identity, None)

    def _on_nack(self, identity: bytes, message: c.Nack) -> None:
        """Somebody misses events that its publisher does not have."""
        if not self._control.may_repair(identity):
            return
        self._counters["lender_nacks"] += 1
        key = ("nack", identity, message.sub, message.stream)
        self._replay.submit(key, partial(self._answer, identity, message), gives_way=True)

    # --- the replay's thread ---

    def _admit(self, identity: bytes, sub: int, start: c.Start, again: bool) -> None:
        """Say what is there from a start on: epochs that are over, oldest first, then the newest.

        `again`, of a new epoch: what the reader knows of the one before is where it ended.
        """
        recorded = self.logs[start.stream]
        epoch, stop = recorded.place
        if not epoch:
            return  # it is told when there is something
        known = _journal(recorded).find(epoch)
        origin = stop if known is None else known.first
        begin = stop
        if start.kind == "origin":
            begin = origin
        elif start.kind != "live" and not (start.kind == "resume" and start.epoch > epoch):
            chapters, place = self._replay.chapters(recorded.folder, start, epoch)
            for chapter in chapters:
                first = chapter.start if not again or chapter.epoch != start.epoch else chapter.stop
                over = c.Subscribed(
                    sub,
                    start.stream,
                    chapter.epoch,
                    chapter.origin,
                    first,
                    chapter.stop,
                    first,
                    over=True,
                    recorded=True,
                )
                self._control.post(identity, over)
            begin = origin if place is None else min(max(place, origin), stop)
        admitted = c.Subscribed(
            sub, start.stream, epoch, origin, origin, stop, begin, recorded=True
        )
        self._control.post(identity, admitted)

    def _answer(self, identity: bytes, message: c.Nack) -> None:
        recorded = self.logs[message.stream]
        frames, gone = self._replay.frames(
            recorded.folder, message.epoch, message.ranges, self._repair_bytes_max
        )
        if message.epoch < recorded.place[0]:
            # Of an epoch that is over nothing more will come: say so, that nobody waits for it.
            known = _journal(recorded).find(message.epoch)
            end = 0 if known is None else known.stop or 0
            beyond = [(max(a, end), b) for a, b in message.ranges if b > max(a, end)]
            if beyond:
                gone.setdefault("gone", []).extend(beyond)
        self._control.answer_nack(identity, message, frames, gone)
        self._counters["lent_frames"] += len(frames)


def _journal(recorded: RecordedLog) -> Journal:
    reader = LogReader(recorded.folder)
    reader.refresh()
    return reader.journal
