"""A member of a work group: its PULL socket, the work it has, and what it says of it.

Driven like an `Intake`: by the consumer's own thread or event loop while it waits, by the I/O
thread now and then.  Acknowledgements gather while there is work at hand.  They leave in one
control message when the work runs out, when a good part of the credit is used up, or after
`SETTLE_S`, whichever is first.  Who takes the member, and what it had before, is `consumer_joins`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from operator import length_hint
from typing import Any

from msgspec.structs import replace

from meshmsg import _platform
from meshmsg._groups.consumer_joins import Membership
from meshmsg._groups.consumer_messages import Asked, Attached, MemberSetup, Notice, Parted
from meshmsg._groups.work_batch import (
    ERROR_CHARS_MAX,
    SETTLED_BYTES_MAX,
    AckRange,
    WorkBatch,
    WorkSource,
    bytes_at_most,
    ranges_of,
    settlement_of,
)
from meshmsg._model.batch import Batch, run_out
from meshmsg._model.errors import PeerRefused, ProtocolError
from meshmsg._model.event import Loss
from meshmsg._model.message_fields import ENTRIES_MAX
from meshmsg._model.topics import Pattern
from meshmsg._receive.incoming_stream import Sweep
from meshmsg._receive.subscription_io import LOSSES_MAX, SIGNALS_S
from meshmsg._wire.control import (
    Joined,
    Page,
    Refusal,
    Settle,
    Settlement,
    Unjoined,
    encode_pages,
)
from meshmsg._wire.frame import Frame
from meshmsg._wire.subframe import decode_work
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.transports.zmq.receive_socket import SOON_S
from meshmsg.transports.zmq.work_queue import WorkInlet

log = logging.getLogger("meshmsg.peer")

#: Acknowledgements wait at most this long for company.
SETTLE_S = 0.005
#: This part of the credit used up sends them too.
SETTLE_SHARE = 4
READ_MESSAGES_MAX = 64


class Member(Membership):
    """All work of one group subscription."""

    def __init__(
        self,
        setup: MemberSetup,
        inlet: WorkInlet,
        post: Callable[[Any, Any], None],
        wake_io: Callable[[], None],
    ) -> None:
        super().__init__(setup, inlet, post)
        self.lock = _platform.new_rlock()
        self.inbox: deque[Notice] = deque()
        self.losses: deque[Loss] = deque(maxlen=LOSSES_MAX)
        self.evictions: deque[str] = deque(maxlen=100)
        self.closed = False
        self.resting = False  #: takes no more work
        self.on_close: Callable[[], None] | None = None  #: while a coroutine waits
        self.refusal: PeerRefused | None = None
        self._inlet_closed = False
        self._wake_io = wake_io
        self._unsaid = False
        self._unsaid_since = NEVER
        self.unsaid_max = max(1, self.options.prefetch // SETTLE_SHARE)

    @property
    def group(self) -> str:
        """The group that it is a member of."""
        return self.options.group

    # --- for the I/O thread ---

    def on_joined(self, link: Any, message: Joined, address: str) -> None:
        """A publisher has taken us."""
        epochs = {tail.stream: tail.epoch for tail in message.streams}
        self.notify(
            Attached(
                link,
                address,
                epochs,
                link.data_key,
                message.generations,
            )
        )

    def on_unjoined(self, link: Any, message: Unjoined) -> None:
        """A publisher has not, or not any more."""
        if message.refused:
            self.guard.notes.error("group %s: %s", self.options.group, message.reason)
            self.counters["refused"] += 1
            self.refusal = PeerRefused(link.address, message.reason)
        self.notify(Parted(link, message.reason))

    def notify(self, notice: Notice) -> None:
        """Hand in what came by the control channel."""
        self.inbox.append(notice)
        self.wake()

    def wake(self) -> None:
        """Have whoever drives look at the inbox."""
        self._inlet.wakeup.set()

    def tend(self, now: float, *, force: bool = False) -> None:
        """In the background: say what is due to be said; take notice of who came and went."""
        if self._unsaid and now >= self._unsaid_since + SETTLE_S:
            self.say()
        if (self.inbox or force) and self.lock.acquire(blocking=False):
            try:
                if not self.closed:
                    self._read_inbox()
            finally:
                self.lock.release()

    def settle_due(self) -> float:
        """When `tend` has something to say."""
        return self._unsaid_since + SETTLE_S if self._unsaid else NEVER

    def streams(self) -> set[str]:
        """The streams that it has, or is about to have."""
        asked = [notice for notice in list(self.inbox) if isinstance(notice, Asked)]
        return {*self._offered, *(info.name for one in asked for info in one.infos)}

    def sign_of_life(self) -> None:
        """Tell every publisher that we count ourselves as its member."""
        for link in list(self._links.values()):
            self._post(link, Settle(self.sub, []))

    # --- driving: with the lock held ---

    def pump(self, now: float, *, read_ahead: bool = False) -> bool:
        """Take in what there is without waiting; returns whether anything is ready."""
        if self.inbox:
            self._read_inbox()
        recv, ready = self._inlet.recv, self._ready
        room = self._room() if read_ahead else 0
        for _ in range(READ_MESSAGES_MAX):
            if ready and room <= 0:
                break
            data = recv()
            if data is None:
                break
            room -= self._on_message(data)
        if self._unsaid and not ready:
            self.say()
        return bool(ready)

    def _room(self) -> int:
        """Return how many events may be read ahead: no honest publisher sends more than that."""
        waiting = sum(len(one) for one in self._ready if isinstance(one, Batch))
        return self.options.prefetch * max(1, len(self._links)) - waiting

    def wait(self, timeout: float | None, now: float) -> None:
        """Wait for work or the time to be up; what is unsaid is said first."""
        if self._unsaid:
            self.say()
        self._inlet.wait(SIGNALS_S if timeout is None else min(timeout, SIGNALS_S))

    def receive(self, now: float, deadline: float | None, *, as_events: bool = False) -> bool:
        """Take in the next message, waiting a little for it: the quick way."""
        soon = now + SOON_S
        if self.inbox or not self._links or (deadline is not None and deadline < soon):
            return False
        if self._unsaid:
            data = self._inlet.recv()
            if data is None:
                self.say()
                data = self._inlet.recv_soon()
        else:
            data = self._inlet.recv_soon()
        if data is None:
            return False
        self._on_message(data)
        return True

    @property
    def timer_due(self) -> float:
        """Nothing here waits for a clock."""
        return NEVER

    @property
    def fds(self) -> tuple[int, ...]:
        """File descriptors for an event loop: wake-up, data."""
        return (self._inlet.wakeup.fd, *self._inlet.fds)

    def clear_wakeup(self) -> None:
        """The wake-up call was heard."""
        self._inlet.wakeup.clear()

    def take(self, *, as_events: bool) -> Batch | Loss | None:
        """The next batch or loss, `None` if nothing is ready."""
        if length_hint(self.iterator):
            rest = self.current if as_events else self._rest()
            if rest is not None:
                return rest
        if self._auto and self.current is not None:
            batch, self.current = self.current, None
            self.ack_batch(batch)
        if not self._ready:
            return None
        found = self._ready.popleft()
        if isinstance(found, Loss):
            self.losses.append(found)
            self.counters["lost"] += found.count
            return found
        books = found.source.books
        books.delivered += len(found)
        if found.attempt != 1:
            books.redelivered += found.came_again
        # Decoded before it counts as handed over.
        iterator = iter(found.events() if as_events else ())
        self.current = found
        self.iterator = iterator
        return found

    def _rest(self) -> Batch | None:
        """What the consumer has yet to take of the batch it is in, as a batch of its own."""
        batch = self.current
        left = run_out(self.iterator)
        if batch is None or not left:  # another thread was quicker
            return None
        self.current = None
        whole = list(batch.indices)
        places = whole[len(whole) - left :]
        if self._auto:
            self._ack_places(batch, whole[: len(whole) - left])
        self.current = rest = self._part_of(batch, places)
        return rest

    def loss_is_next(self) -> bool:
        """Whether a loss would be handed over next."""
        return bool(self._ready) and isinstance(self._ready[0], Loss)

    def _on_message(self, data: bytes) -> int:
        """Take work in; return how many events it has."""
        ticket = int.from_bytes(data[:8], "little")
        if ticket not in self._valid or self.resting:
            self.counters["stray_work"] += 1  # of a membership that is over
            return 0
        try:
            frame, work = decode_work(ticket, data)
            source = self._by_wire.get(frame.stream)
            if source is not None and frame.epoch < source.epoch and source.info.durable:
                key = (frame.stream, frame.epoch)  # from the publisher's log
                source = self._older[key] = self._older.get(key) or source.older(frame.epoch)
            if source is None or source.epoch != frame.epoch:
                self.counters["stray_work"] += 1  # of a publisher that does not count on us
                return 0
            if not self._is_own(source, frame):
                self.counters["foreign_frames"] += 1
                return 0
            batch = WorkBatch(frame, work, source, self)
            if source.claims is not None:
                with self._settle_lock:
                    source.claims.take(batch.ranges())
            source.books.received += len(batch)
            self._ready.append(batch)
            return len(batch)
        except ProtocolError as error:
            log.debug("a bad work message was dropped: %s", error)
            self.counters["bad_messages"] += 1
        except Exception:
            self.guard.failed("a work message")
        return 0

    def _is_own(self, source: WorkSource, frame: Frame) -> bool:
        """Whether work is of whom it came from, and what that may say, where that is known."""
        came_from = self._inlet.came_from
        if not came_from:
            return True
        only = Pattern(source.info.topics)
        right = self._addresses.get(id(source.link)) == came_from
        return right and all(only.matches(topic) for topic in frame.topics)

    def _read_inbox(self) -> None:
        while self.inbox:
            notice = self.inbox.popleft()
            try:
                self._take_notice(notice)
            except Exception:
                self.guard.failed(f"a notice ({type(notice).__name__})")

    def _take_notice(self, notice: Notice) -> None:
        if isinstance(notice, Asked):
            if not self.resting:
                self._ask(notice)
        elif isinstance(notice, Attached):
            self._attach(notice)
        elif isinstance(notice, Parted):
            self._part(notice.link)
        elif isinstance(notice, Sweep):
            self._sweep(notice, _platform.monotonic())
        else:
            for first, stop in notice.ranges:
                self._ready.append(Loss(notice.stream, notice.epoch, first, stop, notice.reason))

    # --- settling: any thread ---

    def ack_batch(self, batch: WorkBatch) -> None:
        """A whole batch is done."""
        self.ack_ranges(batch.source, batch.ranges(), len(batch))

    def ack_ranges(self, source: WorkSource, ranges: Iterable[AckRange], count: int) -> None:
        """These events are done."""
        with self._settle_lock:
            source.ack_ranges += ranges
            source.in_ranges += count
            unsaid = source.in_ranges
        if not self._unsaid or unsaid >= self.unsaid_max:
            self.on_unsaid(unsaid)

    def _ack_places(self, batch: WorkBatch, places: list[int]) -> None:
        for index in places:
            batch.ack_at(index)

    def on_unsaid(self, count: int) -> None:
        """There is something to say: now if it is much, else in a while."""
        if count >= self.unsaid_max:
            self.say()
        elif not self._unsaid:
            self._unsaid_since = _platform.monotonic()
            self._unsaid = True
            self._wake_io()  # which says it if nobody else does in time

    def nack(self, batch: WorkBatch, index: int, delay_s: float, error: str) -> None:
        """One event is to come again, for somebody: said at once."""
        seq = batch.frame.first + index
        # Half a surrogate pair, as in names of files, cannot be encoded.
        text = error[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()
        refusal = Refusal(seq, batch.attempt_at(index), delay_s, text)
        with self._settle_lock:
            batch.source.nacks.append(refusal)
            self.counters["nacked"] += 1
        self.say()

    def say(self, *, closed: bool = False) -> None:
        """Send what is unsaid to whom it concerns, in as many messages as that takes."""
        while not self._say_some(closed=closed):
            pass

    def _say_some(self, *, closed: bool) -> bool:
        """Send as much of it as one message holds; return False when there is more."""
        with self._settle_lock:
            self._unsaid = False
            size = count = 0
            by_link: dict[int, tuple[Any, list[Settlement]]] = {}
            if closed:
                links = {**self._asked, **self._links}
                by_link = {key: (link, []) for key, link in links.items()}
            number = self._await_answers() if closed else 0
            for source in self._sources():
                claims = source.claims
                if not source.joined and id(source.link) not in by_link:
                    continue  # said when a publisher has taken us
                while (
                    size <= SETTLED_BYTES_MAX
                    and count < ENTRIES_MAX
                    and (settlement := settlement_of(source)) is not None
                ):
                    size += bytes_at_most(settlement)
                    count += 1
                    link, said = by_link.setdefault(id(source.link), (source.link, []))
                    said.append(settlement)
                    if claims is not None:
                        number = self._number + 1
                        claims.say(number, settlement.acks, settlement.nacks)
                    if not (source.ack_ranges or source.nacks or source.returned):
                        break  # all of it fitted
                if source.acks:  # came meanwhile, from another thread
                    self._unsaid_since, self._unsaid = _platform.monotonic(), True
            self._number = number or self._number
            all_said = size <= SETTLED_BYTES_MAX and count < ENTRIES_MAX
            closed = closed and all_said
            for link, said in by_link.values():
                self._post_settle(link, Settle(self.sub, said, closed, number=number))
        return all_said

    def _post_settle(self, link: Any, settle: Settle) -> None:
        if not settle.closed:
            self._post(link, settle)
        else:
            self._post_received(link, settle)

    def _post_received(self, link: Any, settle: Settle) -> None:
        # What was sent and is not among it comes to nobody: it was never opened.
        came = [(s.info.name, s.received) for s in self.sources() if s.link is link]

        def make(some: list[tuple[str, int]], page: Page) -> Settle:
            last = settle if page.is_last else Settle(self.sub, [])
            return replace(last, received=dict(some))

        for page in encode_pages(make, came):
            self._post(link, page)

    def _await_answers(self) -> int:
        """Have the publishers answer that we leave, those that hear us; return the number."""
        there = {s.info.name for s in self._sources() if s.joined and s.link.state == "up"}
        self._unanswered = there
        self._last_number = self._number + 1 if there else 0
        return self._last_number

    # --- figures ---

    def sources(self) -> list[WorkSource]:
        """The streams that give work."""
        return [source for source in list(self._by_wire.values()) if source.joined]

    def leave(self) -> None:
        """Hand out nothing more, give back what was not looked at, and say the rest.

        The socket stays until `seen_off`: to a publisher, a member whose connection ends before its
        last words have come is lost, and what it has done comes again.
        """
        self.closed = True
        self.left_at = _platform.monotonic()
        self.wake()
        with self.lock:
            if not self._inlet_closed:
                self._say_good_bye()
            if not self._unanswered:
                self.seen_off.set()

    @property
    def in_hand(self) -> int:
        """Events that the application has, and has said nothing of."""
        books = {id(source.books): source.books for source in self._sources()}
        handed = sum(one.delivered - one.acked for one in books.values())
        return max(0, handed - length_hint(self.iterator) - self.counters["nacked"])

    def rest(self) -> None:
        """Take no more work: what the application has not seen goes back, the rest it finishes."""
        with self.lock:
            if self.closed or self.resting:
                return
            self._give_back()
            self.resting = True
            for link in list(self._links.values()):
                # First, or what goes back would come again: no more, and what did not come is for
                # others.
                self._post_received(link, Settle(self.sub, []))
            self.say()

    def _give_back(self) -> None:
        """Return what the application has not seen."""
        left = run_out(self.iterator)
        batch = self.current
        self._read_inbox()
        while (data := self._inlet.recv()) is not None:
            self._on_message(data)
        if batch is not None and left:
            whole = list(batch.indices)
            handed = whole[: len(whole) - left]
            self._return(batch, whole[len(whole) - left :])
            batch.source.books.delivered -= left
            self.current = self._part_of(batch, handed) if handed else None
        for item in self._ready:
            if isinstance(item, WorkBatch):
                self._return(item, list(item.indices))
        self._ready = deque(item for item in self._ready if isinstance(item, Loss))

    def close(self) -> None:
        """Close the socket."""
        self.closed = True
        self.wake()
        with self.lock:
            if not self._inlet_closed:
                self._inlet_closed = True
                self._inlet.close()
            self.seen_off.set()
        told = self.on_close
        if told is not None:  # the loop may not hear of descriptors that are closed
            told()

    def _say_good_bye(self) -> None:
        self._give_back()  # what goes to others is not for us any more
        if self.current is not None and self._auto:
            self.ack_batch(self.current)
        self._ready.clear()
        self.say(closed=True)

    def _return(self, batch: WorkBatch, places: list[int]) -> None:
        first = batch.frame.first
        pairs = [(first + i, batch.attempt_at(i)) for i in places]
        batch.source.returned += ranges_of(pairs)
