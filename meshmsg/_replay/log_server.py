"""Reading of logs by others: which there are, and ranges of them as whole frames.

On a thread of its own, so that neither the I/O thread nor whoever publishes waits for a disk.  Of
each read only as much is on its way as its reader gave credit for; how many reads there are at
once, and how long one may say nothing, is bounded.  Reads take turns, a part each.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from meshmsg import _platform
from meshmsg._model.errors import LogError, TopicError
from meshmsg._model.event import Loss
from meshmsg._model.message_fields import EPOCHS_MAX, PART_FRAMES_MAX, as_text
from meshmsg._model.topics import Pattern, TopicFilter
from meshmsg._runtime.guard import Guard
from meshmsg._wire import control as c
from meshmsg.recovery.log.folder import LogFolder
from meshmsg.recovery.log.reader import LogReader
from meshmsg.recovery.stream.quotas import Owner, Quota

log = logging.getLogger("meshmsg.peer")

#: Bytes of frames in one part, unless a single frame has more.
PART_BYTES = 1024 * 1024
#: What one read may have on its way, and all of them together, but for a part each.
CREDIT_BYTES_MAX = 16 * 1024 * 1024
AHEAD_BYTES_MAX = 256 * 1024 * 1024
#: Of all who dial, and of one of them.
READS_MAX = 256
READS_EACH_MAX = 16
QUESTIONS_MAX = 1000
QUESTIONS_EACH_MAX = 64
#: Logs that are looked into in one turn; a question that is about more of them has several.
LOGS_A_TURN = 16
#: Of the time of the thread, questions have this part while there are many of them.
QUESTIONS_SHARE = 0.2
#: A read that began later has had no time to take anything.
BEGUN_S = 1.0
#: A read that gave no more credit for this long is over.
SILENT_S = 60.0

Send = Callable[[bytes, list[bytes]], bool]


class LogEntry(NamedTuple):
    """A log that this peer serves."""

    stream: str
    topics: str
    codec: str
    folder: LogFolder
    epoch: int
    """The epoch that is being written; 0: none."""
    next: int
    """One past the newest event of it."""
    recorded: bool = False


class _Read:
    """One range that somebody reads."""

    def __init__(self, asker: Asker, request: c.Read, reader: LogReader, now: float) -> None:
        self.asker = asker
        self.identity = asker.identity
        self.user = asker.user
        self.number = request.number
        self.epoch = request.epoch
        self.at = request.first
        self.stop = request.stop
        self.credit = min(request.credit, CREDIT_BYTES_MAX)
        self.ahead = 0  #: bytes sent that no new credit was given for
        self.waits = False  #: for credit
        self.reader = reader
        self.heard_at = now
        self.begun_at = now
        self.taken = 0  #: bytes that it gave new credit for


class Asker(NamedTuple):
    """Who asks for a log."""

    identity: bytes
    user: bytes = b""
    owner: Owner = Owner("")
    fd: int = -1


class _Question:
    """Which logs there are, as somebody asks."""

    def __init__(self, asker: Asker, message: c.LogsPlease) -> None:
        self.asker = asker
        self.message = message
        self.left: list[LogEntry] | None = None  #: yet to be told of; `None` before the first turn
        self.pages = 0  #: of the answer, so far


class ReplayService:
    """Serves the logs of one peer."""

    def __init__(
        self,
        peer: str,
        mesh: str,
        counters: Counter[str],
        entries: Callable[[], Iterable[LogEntry]],
        send: Send,
    ) -> None:
        self.counters = counters
        self._peer = peer
        self._mesh = mesh
        self._entries = entries
        self._send = send
        self._wanted = _platform.new_condition()
        #: Whether a user may read a log.
        self.may: Callable[[bytes, LogEntry], bool] = lambda user, entry: True
        #: Prove who we are to a user that asks for it.
        self.sign: Callable[[bytes, bytes, c.Logs], c.Logs] = lambda user, nonce, logs: logs
        self._questions: deque[_Question] = deque()
        self._question_due = 0.0
        self.quota = Quota(READS_EACH_MAX, READS_MAX)
        self._reads: dict[tuple[bytes, int], _Read] = {}
        self._turns: deque[_Read] = deque()
        self._stopped = False
        name = f"meshmsg-{peer} reads"
        self.guard = Guard(name, counters, "replay_errors")
        self._thread = _platform.new_thread(self._run, name)

    # --- the I/O thread ---

    def on_message(self, asker: Asker, message: c.LogsPlease | c.Read | c.Credit) -> None:
        """A question, a read, or credit for one; never waits."""
        problem = ""
        evicted: _Read | None = None
        with self._wanted:
            if self._stopped:
                problem = self.guard.ended or ""
            elif isinstance(message, c.Credit):
                problem = self._on_credit(asker, message)
            elif message.mesh != self._mesh:
                problem = f"this is mesh {self._mesh!r}, not {message.mesh!r}"
            elif isinstance(message, c.Read):
                problem, evicted = self._on_read(asker, message)
            elif self._is_asking_much(asker.owner):
                problem = "too many questions at once: ask again later"
            else:
                self._questions.append(_Question(asker, message))
            if not problem and not self._stopped:
                self._wake()
        if problem:
            self._refuse(asker.identity, message, problem)
        if evicted is not None:
            self._say_over(evicted, "others need the room, and you took least: try again later")

    def _is_asking_much(self, owner: Owner) -> bool:
        if len(self._questions) >= QUESTIONS_MAX:
            return True
        return sum(one.asker.owner == owner for one in self._questions) >= QUESTIONS_EACH_MAX

    def _wake(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._wanted.notify()

    def _on_credit(self, asker: Asker, message: c.Credit) -> str:
        read = self._reads.get((asker.identity, message.number))
        if read is None or read.user != asker.user:
            # Of one that is over, it may have been on its way.
            return "" if not message.bytes else "no such read: it was over, or silent for too long"
        if not message.bytes:
            self._end(read)
            return ""
        read.credit = min(read.credit + message.bytes, CREDIT_BYTES_MAX)
        read.taken += min(message.bytes, read.ahead)
        read.ahead = max(0, read.ahead - message.bytes)
        read.heard_at = _platform.monotonic()
        if read.waits and self._may_go_on(read):
            read.waits = False
            self._turns.append(read)
        return ""

    def _on_read(self, asker: Asker, request: c.Read) -> tuple[str, _Read | None]:
        """Begin a read; returns why not, and a read that had to give its place."""
        now = _platform.monotonic()
        identity, user = asker.identity, asker.user
        if (identity, request.number) in self._reads:
            return "a read with this number is under way", None
        if request.first >= request.stop or not request.credit:
            return "nothing to read: first must be less than stop, and credit more than 0", None
        entry = next((e for e in self._entries() if e.stream == request.stream), None)
        if entry is None or not self.may(user, entry):
            return f"no log of stream {request.stream!r} here", None
        if self.quota.is_over(asker.owner):
            return f"you have {READS_EACH_MAX} reads under way: end one first", None
        problem, evicted = self._make_room(asker.owner, now)
        if problem:
            return problem, None
        read = _Read(asker, request, LogReader(entry.folder), now)
        self._reads[identity, request.number] = read
        self.quota.take(asker.owner)
        self._turns.append(read)
        self.counters["reads"] += 1
        return "", evicted

    def _make_room(self, owner: Owner, now: float) -> tuple[str, _Read | None]:
        """Where all places are taken, those that say nothing or take least give theirs."""
        full = len(self._reads) >= self.quota.total
        for old in [r for r in self._reads.values() if full and now - r.heard_at > SILENT_S]:
            self.counters["reads_silent"] += 1
            self._end(old)
        if len(self._reads) < self.quota.total:
            return "", None
        giver = self.quota.giver(owner)
        if giver is not None:
            known = [r for r in self._reads.values() if r.asker.owner == giver]
        else:
            known = [r for r in self._reads.values() if now - r.begun_at > BEGUN_S]
        if not known:
            return f"{len(self._reads)} reads are under way: try again later", None
        least = min(known, key=lambda read: read.taken / (now - read.begun_at + BEGUN_S))
        self.counters["reads_evicted"] += 1
        self._end(least)
        return "", least

    def _may_go_on(self, read: _Read) -> bool:
        """A connection has as much on its way as one read may have, whatever it gave credit for."""
        share = AHEAD_BYTES_MAX // max(1, len(self._reads))
        mine = self.quota.owners[read.asker.owner]
        share = min(share, CREDIT_BYTES_MAX // max(1, mine))
        return read.credit > 0 and (read.ahead < share or not read.ahead)

    def _end(self, read: _Read) -> None:
        if self._reads.get((read.identity, read.number)) is read:
            del self._reads[read.identity, read.number]
            self.quota.free(read.asker.owner)

    def forget_connection(self, fd: int) -> None:
        """A connection is gone: what it read ends."""
        with self._wanted:
            for read in [r for r in self._reads.values() if r.asker.fd == fd]:
                self._end(read)

    def forget_users(self, users: set[bytes]) -> None:
        """They may read less than before: what they read ends, whatever id they come back with."""
        with self._wanted:
            for read in [r for r in self._reads.values() if r.user in users]:
                self._end(read)

    def _refuse(
        self, identity: bytes, message: c.LogsPlease | c.Read | c.Credit, problem: str
    ) -> None:
        self.counters["reads_refused"] += 1
        if isinstance(message, c.LogsPlease):
            self._post(identity, c.Logs(message.number, self._peer, error=as_text(problem)))
        else:
            self._post(identity, c.Part(message.number, 0, 0, done=True, error=as_text(problem)))

    def stop(self) -> None:
        """End the thread; what is under way ends."""
        with self._wanted:
            self._stopped = True
            self._questions.clear()
            self._turns.clear()
            self._wanted.notify()
        if self._thread.is_alive():
            self._thread.join()

    # --- the thread ---

    def _run(self) -> None:
        self.guard.drive(self._turn)
        with self._wanted:
            self._stopped = True

    def _turn(self) -> bool:
        """Answer a question, or send a part of a read; `False` when it is over."""
        with self._wanted:
            self._wait()
            if self._stopped:
                return False
            is_due = self._questions and _platform.monotonic() >= self._question_due
            question = self._questions.popleft() if is_due else None
            read = self._turns.popleft() if self._turns and question is None else None
        try:
            if question is not None:
                self._answer(question)
            elif read is not None:
                self._step(read)
        except Exception as error:
            if isinstance(error, LogError):
                self.counters["replay_errors"] += 1
            else:
                self.guard.failed("the reading of a log")
            if question is not None:
                self._refuse(question.asker.identity, question.message, str(error))
            elif read is not None:
                self._finish(read, str(error))
        return True

    def _wait(self) -> None:
        """Wait until there is something to do; with the lock held."""
        while not (self._turns or self._stopped):
            left = self._question_due - _platform.monotonic() if self._questions else None
            if left is not None and left <= 0:
                return
            self._wanted.wait(left)

    def _answer(self, question: _Question) -> None:
        """Tell of some logs, and have a question that is about more wait for its next turn."""
        began = _platform.monotonic()
        asked, identity, user = question.message, question.asker.identity, question.asker.user
        if question.left is None:
            try:
                wanted = TopicFilter(asked.patterns)
            except (TopicError, ValueError) as error:
                self._refuse(identity, asked, str(error))
                return
            entries = [e for e in self._entries() if self.may(user, e)]
            question.left = [e for e in entries if wanted.overlaps(Pattern(e.topics))]
        some, question.left = question.left[:LOGS_A_TURN], question.left[LOGS_A_TURN:]
        head = self.sign(user, asked.nonce, c.Logs(asked.number, self._peer))
        is_last = not question.left

        def make(logs: list[c.LogInfo], page: c.Page) -> c.Logs:
            more = not (is_last and page.is_last)
            return replace(head, logs=logs, more=more, page=question.pages + page.number)

        pages = c.encode_pages(make, [info for entry in some for info in _infos(entry)])
        question.pages += len(pages)
        for page in pages:
            self._send(identity, [page])
        with self._wanted:
            self._question_due = began + (_platform.monotonic() - began) / QUESTIONS_SHARE
            if question.left and not self._stopped:
                self._questions.append(question)

    def _step(self, read: _Read) -> None:
        """Send the next part of a read, and have it wait for its turn or for credit."""
        if self._reads.get((read.identity, read.number)) is not read:  # ended, or begun anew
            read.reader.close()
            return
        first, frames, gone, short = read.at, *_gather(read)
        if short and first == read.at and not frames:
            self._finish(
                read, f"the log of epoch {read.epoch} ends at {read.at}: {read.stop} asked"
            )
            return
        done = read.at >= read.stop
        ranges = [(len(data), stop) for data, stop in frames]
        message = c.Part(read.number, first, read.at, ranges, gone, done)
        size = sum(length for length, _ in ranges)
        parts = [c.encode_message(message), *(data for data, _ in frames)]
        if not self._send(read.identity, parts):
            self._finish(read, "too much waits to be sent")
            return
        self.counters["read_frames"] += len(frames)
        self.counters["read_bytes"] += size
        with self._wanted:
            read.credit -= size
            read.ahead += size
            if done:
                self._end(read)
            elif self._may_go_on(read):
                self._turns.append(read)
            else:
                # What retention removes meanwhile has to be gone from the disk, too.
                read.reader.close()
                read.waits = True
        if done:
            read.reader.close()

    def _finish(self, read: _Read, problem: str) -> None:
        with self._wanted:
            self._end(read)
        read.reader.close()
        self.counters["reads_failed"] += 1
        self._say_over(read, problem)

    def _say_over(self, read: _Read, problem: str) -> None:
        last = c.Part(read.number, read.at, read.at, done=True, error=as_text(problem))
        self._post(read.identity, last)

    def _post(self, identity: bytes, message: c.Logs | c.Part) -> None:
        self._send(identity, [c.encode_message(message)])


def _gather(read: _Read) -> tuple[list[tuple[bytes, int]], list[tuple[int, int, str]], bool]:
    """Frames for one part, what is gone between them, and whether the log has no more.

    The frames' own checks are left to whoever takes them apart.
    """
    frames: list[tuple[bytes, int]] = []
    gone: list[tuple[int, int, str]] = []
    size = 0
    reader = read.reader
    if not reader.stream:
        reader.open()
        reader.seek(read.epoch, read.at)
    while read.at < read.stop and size < PART_BYTES and len(frames) + len(gone) < PART_FRAMES_MAX:
        item = reader.step(read.stop, check=False)
        if item is None or item.epoch != read.epoch:
            return frames, gone, True
        if isinstance(item, Loss):
            read.at = min(item.stop, read.stop)
            gone.append((item.first, read.at, item.reason))
            continue
        read.at = min(item.stop, read.stop)
        frames.append((item.data, item.stop))
        size += len(item.data)
    return frames, gone, False


def _infos(entry: LogEntry) -> Iterator[c.LogInfo]:
    """What a log holds, by its journal; of many epochs, some at a time."""
    reader = LogReader(entry.folder)
    reader.open()
    journal = reader.journal
    for at in range(0, max(1, len(journal.epochs)), EPOCHS_MAX):
        epochs, ever = [], []
        for known in journal.epochs[at : at + EPOCHS_MAX]:
            first, stop = known.first, known.stop
            if known.epoch == entry.epoch:
                stop = entry.next
            if stop is not None:
                ever.append((known.epoch, first, stop))
            if known.epoch == journal.floor[0]:
                first = max(first, journal.floor[1])
            if known.epoch >= journal.floor[0] and stop is not None and stop > first:
                epochs.append((known.epoch, first, stop))
        yield c.LogInfo(
            entry.stream,
            entry.topics,
            entry.codec,
            journal.floor,
            epochs,
            bool(entry.epoch),
            entry.recorded,
            ever,
        )
