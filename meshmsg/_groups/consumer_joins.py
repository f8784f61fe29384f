"""Who takes a member of a work group: joining publishers, and joining again.

To a publisher of durable streams that was away, or is another start of it, a member says first what
it had before: see `recovery.groups.claims`.  What its application has not seen by then is
forgotten, and is sent again; what was sent before and comes late has an old ticket.

Everything but `on_kept` is called with the member's lock held.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from meshmsg import _platform
from meshmsg._groups.consumer_messages import Asked, Attached, MemberSetup
from meshmsg._groups.work_batch import (
    NACKS_MAX,
    Settler,
    WorkBatch,
    WorkSource,
    ranges_of,
    settlement_of,
)
from meshmsg._model.batch import Event, run_out
from meshmsg._model.codecs import received_codec
from meshmsg._model.errors import ProtocolError
from meshmsg._model.event import Loss
from meshmsg._model.message_fields import ACK_RANGES_MAX, CLAIMED_PIECES_MAX, PIECES_MAX
from meshmsg._receive.incoming_stream import Sweep
from meshmsg._runtime.guard import Guard
from meshmsg._wire.control import (
    Claimed,
    Join,
    Kept,
    Start,
    StreamInfo,
    encode_pages,
    stream_wire_id,
)
from meshmsg._wire.subframe import Work
from meshmsg.recovery.groups.claims import pieces_of
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.places import Places
from meshmsg.transports.zmq.work_queue import WorkInlet

log = logging.getLogger("meshmsg.peer")

#: A number that is behind every event: `resume` there means to start live.
LIVE_END = 1 << 62
#: Claims in one message, all of which may be full.
CLAIMS_PAGE = PIECES_MAX // ACK_RANGES_MAX
#: A member that leaves waits so long until its publishers have answered.
FAREWELL_S = 1.0


class Membership(Settler):
    """The half of a member that publishers know."""

    def __init__(
        self, setup: MemberSetup, inlet: WorkInlet, post: Callable[[Any, Any], None]
    ) -> None:
        self.sub = setup.sub
        self.filter = setup.topics
        self.options = setup.options
        self.counters: Counter[str] = Counter()
        self.guard = Guard(f"member {setup.sub & 0xFFFFFF:06x}", self.counters)
        self.current: WorkBatch | None = None
        self.iterator: Iterator[Event] = iter(())
        self.start = setup.start
        self.unsaid_max = 1
        self._inlet = inlet
        self._mesh = setup.mesh
        self._post = post
        self._codec = setup.codec
        self._type = setup.type
        self._offered: dict[str, WorkSource] = {}
        self._by_wire: dict[int, WorkSource] = {}
        self._older: dict[tuple[int, int], WorkSource] = {}  # by epoch, too: work that is resumed
        self._addresses: dict[int, str] = {}  # by link
        self._links: dict[int, Any] = {}
        self._asked: dict[int, Any] = {}  # links whose publishers are to take us
        self._tickets: dict[int, int] = {}  # by link: what its work begins with
        self._valid = {self.sub}  # all of them; publishers of earlier releases know none
        self._unanswered: set[str] = set()  # streams that we leave
        self._last_number = 0  # the message that says so
        self.seen_off = _platform.new_event()  #: all have answered, or are not going to
        self.left_at = NEVER
        self._joins = 0
        self._number = 0  # of the last message that may have to be said again
        self._ready: deque[WorkBatch | Loss] = deque()
        self._places: Places[int] = Places(self.counters)  # epochs that it was a member in
        self._settle_lock = _platform.new_lock()
        self._auto = self.options.auto_ack

    def look(self) -> int:
        """Cut publishers that never finish what they send; return how many were."""
        return self._inlet.look()

    def say(self, *, closed: bool = False) -> None:
        """Send what is unsaid to whom it concerns."""
        raise NotImplementedError

    def _sources(self) -> list[WorkSource]:
        """All streams that were ever offered; of durable ones, earlier epochs that have work."""
        return [*self._offered.values(), *self._older.values()]

    # --- asking ---

    def _ask(self, notice: Asked) -> None:
        """Ask a publisher to take us, beginning anew unless it knows us or is about to."""
        link = notice.link
        anew = notice.anew or id(link) not in self._tickets
        if anew:
            self._begin_anew(link, {info.name for info in notice.infos})
        starts = [
            self._start_at(link, info, born=info.name in notice.born) for info in notice.infos
        ]
        claims, number = self._claims({start.stream for start in starts}) if anew else ([], 0)
        options = self.options
        self._asked[id(link)] = link
        join = Join(
            self.sub,
            options.group,
            [pattern.text for pattern in self.filter.patterns],
            [],
            options.prefetch,
            options.ack_timeout_s,
            options.max_attempts,
            "key" if options.order == "key" else "none",
            notice.name,
            self._tickets[id(link)],
            number=number,
        )
        pages = encode_pages(lambda some, _: replace(join, starts=some), starts)
        if claims:
            claimed = partial(replace, join, patterns=[], more=True)
            pages = encode_pages(lambda some, _: claimed(claims=some), claims, CLAIMS_PAGE) + pages
        for page in pages:
            self._post(link, page)

    def _begin_anew(self, link: Any, streams: set[str]) -> None:
        """Whatever was sent and is not read yet is for nobody: it has another ticket."""
        self._links.pop(id(link), None)
        address = self._addresses.pop(id(link), None)
        if address is not None:
            self._inlet.disconnect(address)
        self._joins += 1
        self._tickets[id(link)] = (self.sub + self._joins) % LIVE_END
        self._valid = {self.sub, *self._tickets.values()}
        for source in self._sources():
            if source.info.name in streams:
                self._interrupt(source)

    def _start_at(self, link: Any, info: StreamInfo, *, born: bool) -> Start:
        source = self._offered.get(info.name)
        if source is None:
            codec = received_codec(info.codec, self._codec, self._type)
            source = WorkSource(info, stream_wire_id(self._mesh, info.name), link, codec)
            self._offered[info.name] = source
            epoch = self._places.take(info.name)
            if epoch is not None:
                start = Start(info.name, "resume", LIVE_END, epoch)
            else:
                start = Start(info.name, "origin") if born else self.start.for_stream(info.name)
            source.start = start
        elif source.start is not None:
            start = source.start  # it may be on its way: to look into a log takes a while
        else:
            # Of a new epoch all is for the group; the old one goes on where the group is.
            start = Start(info.name, "resume", LIVE_END, source.epoch)
        source.link, source.info = link, info
        self._by_wire[source.wire_id] = source  # work may come before the answer does
        return start

    def _claims(self, streams: set[str]) -> tuple[list[Claimed], int]:
        """What a publisher has to be told that may have forgotten it, or never heard of it."""
        claims: list[Claimed] = []
        left = CLAIMED_PIECES_MAX
        with self._settle_lock:
            self._number += 1
            for source in self._sources():
                known = source.claims
                if known is None or source.info.name not in streams:
                    continue
                while (said := settlement_of(source)) is not None:
                    known.say(self._number, said.acks, said.nacks)
                name, epoch, era = source.info.name, source.epoch, source.generation or 0
                done, held = known.done(), known.held()
                nacks = known.failed()[-left:] if left else []
                left -= len(nacks)
                dropped = known.forgotten + max(0, len(done) + len(held) - left)
                if dropped:
                    self.counters["claims_dropped"] += dropped
                    known.forgotten = 0
                done, held = done[:left], held[: max(0, left - len(done))]
                left -= len(done) + len(held)
                claimed = partial(Claimed, name, epoch, generation=era)
                claims += [claimed(nacks=some) for some in pieces_of(nacks, NACKS_MAX)]
                claims += [claimed(acks=some) for some in pieces_of(done, ACK_RANGES_MAX)]
                claims += [claimed(held=some) for some in pieces_of(held, ACK_RANGES_MAX)]
            return claims, self._number

    def on_kept(self, link: Any, message: Kept) -> None:
        """A publisher has heard what we said, and has it on disk: it need not be said again."""
        known = self._offered.get(message.stream)
        if known is None or known.link is not link:
            return
        with self._settle_lock:
            for source in self._sources():
                if source.info.name == message.stream and source.claims is not None:
                    source.claims.confirm(message.number)
            if message.number >= self._last_number > 0:
                self._see_off({message.stream})

    def on_silence(self, link: Any) -> None:
        """A publisher that we have left is not going to answer."""
        with self._settle_lock:
            self._see_off({s.info.name for s in self._offered.values() if s.link is link})

    def _see_off(self, streams: set[str]) -> None:
        self._unanswered -= streams
        if self._last_number and not self._unanswered:
            self.seen_off.set()

    # --- being taken, or not ---

    def _attach(self, notice: Attached) -> None:
        for name, epoch in notice.epochs.items():
            source = self._offered.get(name)
            if source is not None:
                source = self._enter_generation(source, notice.generations.get(name, 0))
                if source.epoch != epoch:
                    source = self._offered[name] = self._renew(source, epoch)
                source.start = None
                self._by_wire[source.wire_id] = source
                for one in self._sources():
                    if one.wire_id == source.wire_id:
                        one.link, one.joined = notice.link, True
        wire_ids = (stream_wire_id(self._mesh, name) for name in notice.epochs)
        streams = [wire_id.to_bytes(8, "little") for wire_id in wire_ids]
        known = self._addresses.get(id(notice.link))
        if known == notice.address:
            self._inlet.connect(notice.address, notice.key, streams)
        else:
            for name in notice.epochs:
                if name in self._offered:
                    self._offered[name].received = 0
            try:
                if known is not None:
                    self._inlet.disconnect(known)
                self._inlet.connect(notice.address, notice.key, streams)
            except ProtocolError as error:
                self.counters["bad_messages"] += 1
                text = "a publisher names an address that cannot be used: %s"
                self.guard.notes.warning(text, error)
                return
        self._addresses[id(notice.link)] = notice.address
        self._links[id(notice.link)] = notice.link
        self._asked.pop(id(notice.link), None)
        if any(source.acks or source.ack_ranges or source.nacks for source in self._sources()):
            self.say()  # what came between the two

    def _enter_generation(self, source: WorkSource, generation: int) -> WorkSource:
        """The group was reset if it has another generation: what is in hand is not ours.

        It will come again, or not; what is said of it still ends in the old source.
        """
        known, source.generation = source.generation, generation
        if known is None or known == generation:
            return source
        self.counters["groups_reset"] += 1
        for key in [key for key in self._older if key[0] == source.wire_id]:
            del self._older[key]
        new = self._offered[source.info.name] = source.renewed(source.epoch)
        return new

    def _renew(self, source: WorkSource, epoch: int) -> WorkSource:
        """A stream's publisher has started anew: the same numbers mean other events now.

        What is still acknowledged of a durable stream is said; else it ends in the old source.
        """
        new = source.renewed(epoch)
        for old in [s for s in self._sources() if s.wire_id == source.wire_id]:
            key = (old.wire_id, old.epoch)
            if old.claims is None:
                self._drop_work(old)
            if old.claims is None or old.is_idle:
                self._older.pop(key, None)
            else:
                old.books = new
                self._older[key] = old
        return new

    def _part(self, link: Any) -> None:
        """Forget the work of a publisher that has given it to others."""
        address = self._addresses.pop(id(link), None)
        self._links.pop(id(link), None)
        if address is not None:
            self._inlet.disconnect(address)
            self.counters["parted"] += 1
        self._asked.pop(id(link), None)
        self._tickets.pop(id(link), None)
        self._valid = {self.sub, *self._tickets.values()}
        for source in self._sources():
            if source.link is link:
                self._interrupt(source)
                self._by_wire.pop(source.wire_id, None)
                if source.claims is None:
                    self._older.pop((source.wire_id, source.epoch), None)

    def _sweep(self, notice: Sweep, now: float) -> None:
        """Forget streams that nobody has published for so long, and of which nothing is in hand."""
        batches = [*self._ready, self.current]
        busy = {one.source.wire_id for one in batches if isinstance(one, WorkBatch)}
        # What was done of a durable stream has to be told to its next start.
        busy |= {one.wire_id for one in self._sources() if one.claims}
        for name, source in list(self._offered.items()):
            if source.link.state == "up":
                source.seen_at = now
            elif now - source.seen_at >= notice.gone_s and source.wire_id not in busy:
                self._places.keep(name, source.epoch)
                self._by_wire.pop(source.wire_id, None)
                del self._offered[name]
        self._older = {at: one for at, one in self._older.items() if one.info.name in self._offered}

    # --- what becomes of the work ---

    def _interrupt(self, source: WorkSource) -> None:
        """Its publisher does not count on us: of a durable stream, what is in hand stays ours."""
        if source.claims is None:
            self._let_go(source)
        else:
            self._drop_unopened(source)
        source.joined = False

    def _drop_unopened(self, source: WorkSource) -> None:
        """What the application has not seen is sent again, to whomever."""
        batch = self.current
        if batch is not None and batch.source is source:
            left = run_out(self.iterator)
            if left:
                places = list(batch.indices)
                handed = places[: len(places) - left]
                self._forget(batch, places[len(places) - left :])
                self.current = self._part_of(batch, handed) if handed and self._auto else None
        for item in self._ready:
            if isinstance(item, WorkBatch) and item.source is source:
                self._forget(item, list(item.indices))
        self._ready = deque(
            item for item in self._ready if isinstance(item, Loss) or item.source is not source
        )

    def _forget(self, batch: WorkBatch, places: list[int]) -> None:
        first = batch.frame.first
        ranges = ranges_of([(first + i, batch.attempt_at(i)) for i in places])
        assert batch.source.claims is not None
        with self._settle_lock:
            batch.source.claims.let_go(ranges)

    def _part_of(self, batch: WorkBatch, places: list[int]) -> WorkBatch:
        attempts = [batch.attempt_at(i) for i in places]
        work = Work(batch.frame.data, places[0], places[-1] + 1, places, 0, attempts)
        return WorkBatch(batch.frame, work, batch.source, self)

    def _let_go(self, source: WorkSource) -> None:
        """Others have its work: hand nothing more of it out, the batch in hand included."""
        if self.current is not None and self.current.source is source:
            deque(self.iterator, maxlen=0)
            self.current = None
        self._drop_work(source)

    def _drop_work(self, source: WorkSource) -> None:
        self._ready = deque(
            item for item in self._ready if isinstance(item, Loss) or item.source is not source
        )
        with self._settle_lock:
            source.acks.clear()
            source.ack_ranges, source.nacks, source.in_ranges = [], [], 0
