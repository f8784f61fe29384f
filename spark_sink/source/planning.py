"""What an offset means, and how far the next one goes.

Pure: dictionaries in, dictionaries and ranges out.  An offset stands for a set of events that were
taken, and a batch is the difference of two such sets: it has the same rows whenever it is run, and
whatever can be seen then.  The sets only grow.

Where one place keeps a stream, its epochs come in order: one that is not named is over if a later
one is.  Where several peers do, one that is away may come back with an epoch between those that
were read, or with the beginning of one.  So there an offset says itself what is over: epochs up to
a mark (`done`) that moves only when all peers answer.  Those behind it which are not named are read
when somebody has them, and so are events of a named one that are `owed`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshmsg.recovery.stream.ranges import RangeSet
from meshmsg.spark_sink.source.positions import (
    EPOCHS_KEPT,
    Epoch,
    Positions,
    Range,
    StreamState,
    Survey,
    begun_key,
    done_key,
    found_key,
    in_order,
    key_of,
    newest,
    owed_key,
    parse_found,
    parse_key,
    parse_mark,
    parse_owed,
)

#: While a peer is away nothing is forgotten; a stream with so many epochs waits for it.
EPOCHS_MAX = 1000
#: Ranges of an epoch that may be owed; what is missing beyond these is lost.
OWED_MAX = 16


@dataclass(slots=True)
class Taken:
    """What was taken of an epoch: all before `next`, but for what is owed."""

    next: int = 0
    owed: RangeSet = field(default_factory=RangeSet)
    found: int = 0
    """Before this, events had gone when the query began: nobody misses them."""

    def events(self) -> RangeSet:
        """The numbers that were taken."""
        return RangeSet(self.owed.missing(0, self.next))

    def take(self, first: int, stop: int) -> None:
        """Take these, too; what lies before them is owed."""
        if first > self.next:
            self.owed.add(self.next, first)
        self.owed.remove(first, stop)
        self.next = max(self.next, stop)


@dataclass(slots=True)
class Reached:
    """How far a reader is in one stream."""

    epochs: dict[int, Taken] = field(default_factory=dict)
    done: int | None = None
    """Epochs up to this one are over, unless they are named; `None`: up to the newest named."""
    begun: int = 0
    """Epochs up to this one are not missed where they had expired already."""

    def is_taken_up(self, epoch: Epoch, partial: bool) -> bool:
        """Whether an epoch that is not named is read from now on."""
        has_events = epoch.stop > epoch.first
        if self.done is None:
            # One that has expired as a whole is named too: what was missed is to be seen.
            return epoch.epoch > max(self.epochs, default=0) and (bool(self.epochs) or has_events)
        return epoch.epoch > self.done and (
            has_events or not (partial or epoch.epoch <= self.begun)
        )


def reached(positions: Mapping[str, int]) -> dict[str, Reached]:
    """An offset by stream."""
    found: dict[str, Reached] = defaultdict(Reached)
    for key, value in positions.items():
        if (parsed := parse_key(key)) is not None:
            found[parsed[0]].epochs.setdefault(parsed[1], Taken()).next = value
        elif (mark := parse_mark(key)) is not None:
            setattr(found[mark[0]], mark[1], value)
        elif (owed := parse_owed(key)) is not None:
            taken = found[owed[0]].epochs.setdefault(owed[1], Taken())
            taken.owed.add(owed[2], max(owed[2], value))
        elif (gone := parse_found(key)) is not None:
            found[gone[0]].epochs.setdefault(gone[1], Taken()).found = value
    return dict(found)


def written(places: Mapping[str, Reached]) -> Positions:
    """The same as an offset."""
    found: Positions = {}
    for stream, place in places.items():
        if place.done is not None:
            found[done_key(stream)] = place.done
            found[begun_key(stream)] = place.begun
        for epoch, taken in place.epochs.items():
            found[key_of(stream, epoch)] = taken.next
            for first, stop in taken.owed:
                found[owed_key(stream, epoch, first)] = stop
                if first < taken.found:
                    found[found_key(stream, epoch)] = taken.found
    return in_order(found)


# --- where a query begins ------------------------------------------------------------------------


def earliest(survey: Survey) -> Positions:
    """Before the oldest event of each stream."""
    return written({s.stream: _beginning(s, survey.spread) for s in survey.streams.values()})


def latest(survey: Survey) -> Positions:
    """Behind the newest event of each stream."""
    found = reached(newest(survey))
    for place in found.values():
        if survey.spread:
            place.done = place.begun = max(place.epochs)
    return written(found)


def from_place(state: StreamState, epoch: int, seq: int, spread: bool) -> Positions:
    """Before one event of a stream; what lies before it is over."""
    first = next((e for e in state.epochs if e.stop > e.first), None)
    if spread and first is not None and (epoch, seq) == (first.epoch, first.first):
        # Nobody who answers has anything before it: whoever is away may.
        return written({state.stream: _beginning(state, spread)})
    place = Reached({epoch: Taken(seq)})
    if spread:
        place.done = place.begun = epoch
    return written({state.stream: place})


def _beginning(state: StreamState, spread: bool) -> Reached:
    place = Reached()
    for epoch in state.epochs:
        if epoch.stop > epoch.first or (spread and not epoch.ended):
            taken = place.epochs[epoch.epoch] = Taken(epoch.first)
            if spread:
                taken.owed.add(0, epoch.first)
                taken.found = epoch.first
    if spread:
        place.done = 0
        place.begun = max((epoch.epoch for epoch in state.epochs), default=0)
    return place


def _begun(start: Mapping[str, int], survey: Survey) -> dict[str, Reached]:
    """Where a reader is, with streams that it sees for the first time."""
    places = reached(start)
    for state in survey.streams.values():
        place = places.get(state.stream)
        if place is None:
            places[state.stream] = _beginning(state, True) if survey.spread else Reached()
        elif place.done is None and survey.spread:  # of a time when it had one place
            place.done = place.begun = max(place.epochs, default=0)
    return places


# --- how far it can go ---------------------------------------------------------------------------


def available(start: Mapping[str, int], survey: Survey) -> Positions:
    """Where a reader that stands at `start` can go: all that is there now."""
    places = _begun(start, survey)
    for state in survey.streams.values():
        _advance(places[state.stream], state, survey.partial)
    return written(places)


def _advance(place: Reached, state: StreamState, partial: bool) -> None:
    taken_up = {e.epoch for e in state.epochs if place.is_taken_up(e, partial)}
    for epoch in state.epochs:
        taken = place.epochs.get(epoch.epoch)
        if taken is None and epoch.epoch not in taken_up:
            continue
        if taken is None:
            if place.done is not None and len(place.epochs) >= EPOCHS_MAX:
                continue
            taken = place.epochs[epoch.epoch] = Taken()
            if place.done is not None and epoch.epoch <= place.begun:
                taken.found = epoch.first
        if place.done is not None:
            _leave(taken, epoch, place, partial)
        taken.next = max(taken.next, epoch.stop)


def _leave(taken: Taken, epoch: Epoch, place: Reached, partial: bool) -> None:
    """Before more of an epoch is taken: what is owed of it from now on."""
    for first, stop in list(taken.owed):
        for due in _due(first, stop, taken, epoch, place, partial):
            taken.owed.remove(*due)
    there = epoch.first if partial else 0 if taken.next else max(taken.found, epoch.origin)
    if there > taken.next and len(taken.owed) < OWED_MAX:
        taken.owed.add(taken.next, there)


def _due(
    first: int, stop: int, taken: Taken, epoch: Epoch, place: Reached, partial: bool
) -> list[tuple[int, int]]:
    """The parts of what is owed that are to be read now, and are lost if nobody has them."""
    parts = [(max(first, epoch.first), min(stop, epoch.stop))]
    if not partial:  # nobody else has it; but what never was there is not missed
        begin = taken.found if epoch.epoch <= place.begun else 0 if first else epoch.origin
        parts.append((max(first, begin), stop))
    return [(low, high) for low, high in parts if low < high]


def backlog(start: Mapping[str, int], end: Mapping[str, int], survey: Survey) -> list[Range]:
    """The ranges between two offsets that have events, by stream and epoch."""
    ranges = []
    before = reached(start)
    for stream, place in sorted(reached(end).items()):
        state = survey.streams.get(stream)
        origins = {e.epoch: e.origin for e in state.epochs} if state is not None else {}
        old = before.get(stream, Reached())
        for epoch, taken in sorted(place.epochs.items()):
            events = taken.events()
            for first, stop in old.epochs.get(epoch, Taken()).events():
                events.remove(first, stop)
            for first, stop in events:
                # Whoever has read some of it misses what a log that was begun anew does not have.
                first = first or (0 if place.done is not None else origins.get(epoch, 0))
                if stop > first:
                    ranges.append(Range(stream, epoch, first, stop))
    return ranges


def ending(given: Mapping[str, int], everything: Mapping[str, int]) -> Positions:
    """All, up to what is given: epochs before it to their end, those behind it not at all."""
    named, found = reached(given), reached(everything)
    for stream, place in found.items():
        ends = named[stream].epochs if stream in named else {}
        for epoch in list(place.epochs):
            if ends and epoch > max(ends):
                del place.epochs[epoch]
            elif epoch in ends:
                taken = place.epochs[epoch]
                taken.next = min(taken.next, ends[epoch].next)
                taken.owed = RangeSet(taken.owed.overlap(0, taken.next))
    return written(found)


# --- how far it goes -----------------------------------------------------------------------------


def next_offset(
    start: Mapping[str, int], seen: Survey, now: Survey, events_max: int | None
) -> Positions:
    """Where the next batch ends: towards what was `seen`; what is over `now` is forgotten."""
    end = available(start, seen)
    if events_max is not None:
        end = limited(start, end, seen, events_max)
    if end != start or full_streams(end):
        end = pruned(start, end, now)
    return end


def full_streams(positions: Mapping[str, int]) -> list[str]:
    """Streams that go on with no further epoch before some are forgotten."""
    return [
        stream
        for stream, place in reached(positions).items()
        if place.done is not None and len(place.epochs) >= EPOCHS_MAX
    ]


def limited(
    start: Mapping[str, int], end: Mapping[str, int], survey: Survey, events_max: int
) -> Positions:
    """As far towards `end` as so many events go; each stream gets its share, old epochs first."""
    ranges: dict[str, dict[int, list[Range]]] = defaultdict(lambda: defaultdict(list))
    counts: dict[str, int] = defaultdict(int)
    for found in backlog(start, end, survey):
        ranges[found.stream][found.epoch].append(found)
        counts[found.stream] += found.events
    if sum(counts.values()) <= events_max:
        return in_order(end)
    shares = _shares(counts, events_max)
    places, goals = _begun(start, survey), reached(end)
    for stream, goal in goals.items():
        if stream in counts:
            _go(places.setdefault(stream, Reached()), goal, ranges[stream], shares[stream])
        else:
            places[stream] = goal
    return written(places)


def _go(place: Reached, goal: Reached, ranges: Mapping[int, list[Range]], events_max: int) -> None:
    """Take so many events, oldest first.

    An epoch is named when something of it is taken: never before all older ones are.
    """
    place.done, place.begun = goal.done, goal.begun
    for epoch in sorted(goal.epochs):
        for wanted in ranges.get(epoch, ()):
            count = min(events_max, wanted.events)
            if not count:
                return
            taken = place.epochs.setdefault(epoch, Taken(found=goal.epochs[epoch].found))
            taken.take(wanted.first, wanted.first + count)
            if place.done is None:
                taken.owed.clear()  # before where the log begins there is nothing
            events_max -= count
            if count < wanted.events:
                return
        if epoch not in ranges:
            place.epochs[epoch] = goal.epochs[epoch]


def _shares(counts: Mapping[str, int], events_max: int) -> dict[str, int]:
    """What each stream may have of the limit: by its backlog, at least one while it lasts."""
    total, left = sum(counts.values()), events_max
    shares = {}
    for stream, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        share = min(count, left, max(1, events_max * count // total))
        shares[stream] = share
        left -= share
    largest = max(counts, key=lambda stream: counts[stream])
    shares[largest] = min(counts[largest], shares[largest] + left)
    return shares


# --- what may be forgotten -----------------------------------------------------------------------


def pruned(start: Mapping[str, int], end: Mapping[str, int], survey: Survey) -> Positions:
    """Without epochs that ended, were read before this batch, and lie far back."""
    before, places = reached(start), reached(end)
    for stream, place in places.items():
        state = survey.streams.get(stream)
        far = sorted(place.epochs)[:-EPOCHS_KEPT]
        if state is None or not far or (place.done is not None and survey.partial):
            continue
        known = {epoch.epoch: epoch for epoch in state.epochs}
        bound = far[-1]
        if place.done is not None:
            open_ = [e for n, e in known.items() if n not in place.epochs]
            bound = min([bound, *(e.epoch - 1 for e in open_ if place.is_taken_up(e, False))])
            place.done = max(place.done, bound)
        old = before.get(stream, Reached())
        for number in far:
            was, now = old.epochs.get(number), place.epochs[number]
            if number <= bound and was == now and _is_over(now, known.get(number), place):
                del place.epochs[number]
    return written(places)


def _is_over(taken: Taken, epoch: Epoch | None, place: Reached) -> bool:
    """Whether nobody will have more of it; one that nobody knows may be in a log that is away."""
    if epoch is None:
        return place.done is not None
    due = any(_due(*owed, taken, epoch, place, partial=False) for owed in taken.owed)
    return epoch.ended and taken.next >= epoch.stop and not due
