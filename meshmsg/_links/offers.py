"""Offers: which streams of other peers our subscriptions are told of, and what those peers answer.

On the I/O thread, but for what says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from meshmsg import _platform
from meshmsg._groups.consumer import Member
from meshmsg._groups.consumer_messages import Asked, Parted
from meshmsg._links.outbound_peer import Link, LinkTable, Listing, data_address
from meshmsg._links.status_reports import StatusReports
from meshmsg._links.taken_streams import TakenStreams
from meshmsg._model.config import Tuning
from meshmsg._model.errors import ProtocolError
from meshmsg._model.event import Position
from meshmsg._model.message_fields import ENTRIES_MAX
from meshmsg._model.topics import Pattern
from meshmsg._receive.incoming_stream import (
    Attach,
    Complete,
    Detach,
    Lend,
    RepairFrame,
    Said,
    Sweep,
    TailHint,
)
from meshmsg._receive.subscription_io import Intake
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire import control as c
from meshmsg.recovery.stream.meetings import Meetings
from meshmsg.recovery.stream.unconfirmed import Unconfirmed

#: How often streams are looked for that can be forgotten, within the time that it takes.
SWEEPS = 8


class Inlets:
    """The subscriptions and members of groups of one peer, by their numbers."""

    def __init__(self) -> None:
        self.intakes: dict[int, Intake] = {}
        self.members: dict[int, Member] = {}
        self.names: dict[int, str] = {}
        self.parting: dict[int, Member] = {}  #: have left, and wait for their publishers' answers

    def all(self) -> dict[int, Intake | Member]:
        """All of them, but for members that have left."""
        return {**self.intakes, **self.members}

    def wake(self) -> None:
        """Have whoever drives them look up."""
        for inlet in self.all().values():
            inlet.wake()


class Offers:
    """What a peer's subscriptions have to do with the peers that it dialled."""

    def __init__(
        self,
        tuning: Tuning,
        control: ControlSender,
        notes: LogLimit,
        table: LinkTable,
        inlets: Inlets,
        reports: StatusReports,
    ) -> None:
        self._gone_s = tuning.stream_forget_s
        self._control = control
        self._notes = notes
        self._table = table
        self._inlets = inlets
        self._reports = reports
        self._unconfirmed: Unconfirmed[Link] = Unconfirmed()
        self._meetings = Meetings()
        self._taken = TakenStreams(notes, control.counters, tuning.streams_max)
        self._sweep_due = 0.0

    # --- links come and go ---

    def on_hello(self, hello: c.Hello) -> None:
        """A peer dialled us."""
        has_streams = bool(hello.streams)
        self._meetings.on_hello(hello.instance, self._inlets.all(), has_streams=has_streams)

    def on_page(self, link: Link, listing: Listing, page: c.Welcome, names: frozenset[str]) -> None:
        """Offer our subscriptions what stands on a page of a welcome."""
        inlets = self._inlets.all()
        offers = self._meetings.on_welcome(
            link.instance, names, inlets, again=listing.again, begins=not page.page, more=page.more
        )
        for offer in offers:
            anew = not listing.again and offer.sub not in listing.members
            if self._introduce(link, inlets[offer.sub], offer.streams, offer.born, anew=anew):
                listing.members.add(offer.sub)

    def on_moved(self, link: Link) -> None:
        """The data address of a peer is no longer in use."""
        for intake in list(self._inlets.intakes.values()):
            intake.notify(Detach(link.data_address))

    def tell_complete(self) -> None:
        """Nobody has to wait for further peers, if there are none."""
        if not self._table.is_one_awaited():
            for intake in list(self._inlets.intakes.values()):
                intake.notify(Complete())

    def on_refused(self) -> None:
        """A peer will not talk to us: whoever waits for it should look."""
        self.tell_complete()
        self._inlets.wake()

    def let_go(self, link: Link, *, at_once: bool = False) -> None:
        """A peer is given up; `at_once`, whatever it sent and is not yet read."""
        self._unconfirmed.forget(link=link)
        if link.data_address:
            for intake in list(self._inlets.intakes.values()):
                intake.notify(Detach(link.data_address, at_once))
                intake.tend(_platform.monotonic())
        for member in list(self._inlets.members.values()):
            member.notify(Parted(link, "it is not there any more"))
        self.on_silence(link)

    def on_silence(self, link: Link) -> None:
        """A publisher is not going to answer members that have left it."""
        for member in list(self._inlets.parting.values()):
            member.on_silence(link)

    # --- subscriptions ---

    def offer_all(self, inlet: Intake | Member, met: Iterable[int]) -> None:
        """A new subscription: subscribe wherever its topics can occur.

        It has `met` the peers that were linked when it was made.  A connection that has broken
        meanwhile does not change that: streams that they declare until it is back are new to it.
        """
        for link in self._table.up():
            if self._meetings.meet(link.instance, inlet.sub):
                self._introduce(link, inlet, {*link.streams, *link.recorded})
        for instance in met:
            self._meetings.meet(instance, inlet.sub)

    def forget(self, sub: int) -> None:
        """A subscription is closed."""
        self._unconfirmed.forget(sub=sub)
        self._meetings.forget(sub)

    def _introduce(
        self,
        link: Link,
        inlet: Intake | Member,
        names: Set[str],
        born: Set[str] = frozenset(),
        *,
        anew: bool = False,
    ) -> bool:
        """Tell a subscription of streams that a peer has; `anew`, over a new connection.

        Returns True for a member that asks for some of them.
        """
        if isinstance(inlet, Member):
            return self._offer_member(link, inlet, names, born, anew=anew)
        self._offer(link, inlet, names, born)
        # Of a stream that was forgotten a recorder says something new first: see `follow`.
        lent = {n for n in names & link.recorded.keys() if not inlet.has_forgotten(n)}
        self._lend(link, inlet, lent, born)
        return False

    def follow(self, tails: Iterable[c.Tail]) -> None:
        """A recorder says how far it is: take up streams again that were forgotten and go on."""
        for intake in list(self._inlets.intakes.values()):
            self._take_up(intake, intake.incoming.moved(tails))

    def _take_up(self, intake: Intake, names: Set[str]) -> None:
        """Have a subscription hear of everybody who has recorded these streams."""
        for link in self._table.up() if names else ():
            self._lend(link, intake, names & link.recorded.keys(), frozenset())

    def _lend(self, link: Link, intake: Intake, names: Set[str], born: Set[str]) -> None:
        """A recorder has streams that the subscription wants: history, and what others miss."""
        infos = self._wanted(link, intake, link.recorded, names)
        if not infos:
            return
        asked = [info for info in infos if intake.wants_history(info.name) or not self._has(info)]
        more = self._table.is_one_awaited()
        intake.notify(Lend(link, infos, frozenset(info.name for info in asked), more))
        intake.tend(_platform.monotonic())
        if asked:
            self._subscribe(link, intake, asked, born)

    def _wanted(
        self,
        link: Link,
        inlet: Intake | Member,
        streams: dict[str, c.StreamInfo],
        names: Set[str],
    ) -> list[c.StreamInfo]:
        """Return those of a peer's streams that a subscription takes."""
        some = sorted(names & streams.keys())
        return self._taken.allowed(link, (streams[n] for n in some if _wants(inlet, streams[n])))

    def _has(self, info: c.StreamInfo) -> bool:
        """Whether a stream comes from its publisher."""
        return any(info.name in link.streams for link in self._table.up())

    def _subscribe(
        self,
        link: Link,
        intake: Intake,
        infos: list[c.StreamInfo],
        born: Set[str] = frozenset(),
    ) -> None:
        starts = [
            intake.start_for(info, born=info.name in born, lent=info.name in link.recorded)
            for info in infos
        ]
        names = [info.name for info in infos]
        self._unconfirmed.asked(link, intake.sub, names, now=_platform.monotonic())
        patterns = [pattern.text for pattern in intake.filter.patterns]
        name, hold = self._inlets.names.get(intake.sub, ""), intake.hold
        self._control.post_pages(
            link, lambda some, _: c.Subscribe(intake.sub, patterns, some, name, hold), starts
        )

    def _offer(self, link: Link, intake: Intake, names: Set[str], born: Set[str]) -> None:
        infos = self._wanted(link, intake, link.streams, names)
        if not infos:
            return
        more = not names <= born and self._table.is_one_awaited()
        back = {info.name for info in infos if intake.has_forgotten(info.name)}
        intake.notify(Attach(link, link.data_address, infos, more, link.data_key))
        intake.tend(_platform.monotonic())
        self._subscribe(link, intake, infos, born)
        self._take_up(intake, back)
        if intake.hold and intake.bookmarks is not None:
            self.commit(link, intake, intake.bookmarks.kept())

    def on_unsubscribed(self, link: Link, intake: Intake, message: c.Unsubscribed) -> None:
        """A publisher does not take a subscription, or not any more: say so, and ask again."""
        intake.counters["refused_subscriptions"] += 1
        streams = [n for n in message.streams if n in link.streams or n in link.recorded]
        for name in streams:
            if name not in intake.refusals:
                text = "%s does not take our subscription to %s: %s"
                self._notes.error(text, link.peer, name, message.reason, by=link.address)
            intake.refusals[name] = message.reason
            if message.refused:
                self._settled(link, intake.sub, [name])
        if not message.refused:
            self._unconfirmed.waits(link, intake.sub, streams, now=_platform.monotonic())

    def commit(self, link: Link, intake: Intake, positions: Iterable[Position]) -> None:
        """Tell a publisher what a subscription is done with that its logs wait for; any thread."""
        places = [
            c.Place(position.stream, position.epoch, position.seq)
            for position in positions
            if position.stream in link.streams and link.streams[position.stream].durable
        ]
        if places:
            self._control.post_pages(link, lambda some, _: c.Commit(intake.sub, some), places)

    def rejoin(self, link: Link, member: Member) -> None:
        """A publisher counts a member as lost: ask it to take it again."""
        if link.state == "up":
            self._offer_member(link, member, {*link.streams})

    def _offer_member(
        self,
        link: Link,
        member: Member,
        names: Set[str],
        born: Set[str] = frozenset(),
        *,
        anew: bool = False,
    ) -> bool:
        """Have a member ask for some streams; returns False if it wants none of them."""
        infos = self._wanted(link, member, link.streams, names)
        if infos:
            self._join(link, member, infos, born, anew=anew)
        return bool(infos)

    def _join(
        self,
        link: Link,
        member: Member,
        infos: list[c.StreamInfo],
        born: Set[str] = frozenset(),
        *,
        anew: bool = False,
    ) -> None:
        now = _platform.monotonic()
        self._unconfirmed.asked(link, member.sub, [info.name for info in infos], now=now)
        name = self._inlets.names.get(member.sub, "")
        member.notify(Asked(link, infos, name, born, anew))
        member.tend(now)

    # --- what peers answer ---

    def on_group_message(self, link: Link, message: c.Joined | c.Unjoined | c.Kept) -> None:
        """A publisher has taken one of our members, or not, or has kept what it said."""
        parted = self._inlets.parting.get(message.sub)
        member = self._inlets.members.get(message.sub) or parted
        if member is None:
            return
        if isinstance(message, c.Kept):
            member.on_kept(link, message)
            return
        if parted is not None:
            if isinstance(message, c.Unjoined):
                parted.on_silence(link)
            return
        if isinstance(message, c.Joined):
            self._settled(link, message.sub, (tail.stream for tail in message.streams))
            member.on_joined(link, message, data_address(link.address, message.work))
            member.tend(_platform.monotonic(), force=True)
            return
        member.on_unjoined(link, message)
        member.tend(_platform.monotonic(), force=True)
        if message.refused:
            self._settled(link, message.sub, link.streams)
        else:
            self.rejoin(link, member)

    def on_link_message(
        self, link: Link, message: c.Message, frame: bytes | memoryview | None
    ) -> None:
        """Something for one of our subscriptions."""
        if isinstance(message, c.Pong | c.Bye):
            final = isinstance(message, c.Bye)
            hints = [TailHint(tail.stream, tail.epoch, tail.next, final) for tail in message.tails]
            if isinstance(message, c.Pong):
                self.follow(message.recorded)
                hints += [
                    TailHint(t.stream, t.epoch, t.next, lender=link) for t in message.recorded
                ]
            for intake in list(self._inlets.intakes.values()):
                for hint in hints:
                    intake.notify(hint)
            return
        member = self._inlets.members.get(message.sub)  # type: ignore[union-attr]
        if member is not None and isinstance(message, c.Gone):
            member.notify(message)
        target = self._inlets.intakes.get(message.sub)  # type: ignore[union-attr]
        if target is not None:
            self._hand_in(target, link, message, frame)

    def _hand_in(
        self, intake: Intake, link: Link, message: c.Message, frame: bytes | memoryview | None
    ) -> None:
        if isinstance(message, c.Repair):
            if frame is None:
                raise ProtocolError("a repair without a frame")
            intake.notify(RepairFrame(link, message.stream, bytes(frame), message.answers))
        elif isinstance(message, c.StatusPlease):
            intake.tend(_platform.monotonic(), force=True)
            self._reports.want(intake, [link], message.number)
        elif isinstance(message, c.Subscribed | c.Gone):
            if isinstance(message, c.Subscribed):
                self._settled(link, message.sub, [message.stream])
                intake.refusals.pop(message.stream, None)
            intake.notify(Said(link, message.stream, message))
        elif isinstance(message, c.Unsubscribed):
            self.on_unsubscribed(link, intake, message)
        elif isinstance(message, c.Evicted | c.Rekey):
            intake.notify(message)
        intake.tend(_platform.monotonic())

    def _settled(self, link: Link, sub: int, streams: Iterable[str]) -> None:
        """A publisher has answered: these need not be asked for again."""
        now = _platform.monotonic()
        for stream in streams:
            self._unconfirmed.settled(link, sub, stream, now=now)

    # --- time ---

    def on_tick(self, now: float) -> float:
        """Ask again for subscriptions that nobody has confirmed; returns when to come again."""
        again: dict[tuple[int, int], tuple[Link, Intake | Member, list[c.StreamInfo]]] = {}
        for link, sub, name in self._unconfirmed.due(now=now, most=ENTRIES_MAX):
            inlet = self._inlets.intakes.get(sub) or self._inlets.members.get(sub)
            info = link.streams.get(name) or link.recorded.get(name)
            if inlet is None or info is None:
                self._unconfirmed.settled(link, sub, name, now=now)
            elif link.state == "up":
                again.setdefault((id(link), sub), (link, inlet, []))[2].append(info)
                self._control.counters["subscriptions_repeated"] += 1
        for link, inlet, infos in again.values():
            if isinstance(inlet, Member):
                self._join(link, inlet, infos)
            else:
                self._subscribe(link, inlet, infos)
        return self._unconfirmed.next_due

    def on_ping(self, instances: set[int], now: float) -> None:
        """Have streams forgotten whose publishers are gone; `instances` have dialled us."""
        if now >= self._sweep_due:
            self._sweep_due = now + self._gone_s / SWEEPS
            self._sweep(instances, now)

    def _sweep(self, instances: set[int], now: float) -> None:
        """Have streams forgotten whose publishers are gone, and use the room that there is."""
        inlets, up = self._inlets.all(), self._table.up()
        for inlet in inlets.values():
            inlet.notify(Sweep(self._gone_s))
            inlet.tend(now)
        used = {name for inlet in inlets.values() for name in inlet.streams()}
        self._taken.keep(used.union(*(link.streams for link in up)))
        self._meetings.sweep(instances | {link.instance for link in up}, self._gone_s, now=now)
        for link in [link for link in up if link.untaken and self._taken.has_room(link)]:
            names, link.untaken = link.untaken, set()
            for inlet in inlets.values():
                self._introduce(link, inlet, names)


def _wants(intake: Intake | Member, info: c.StreamInfo) -> bool:
    try:
        return intake.filter.overlaps(Pattern(info.topics))
    except ValueError:  # a pattern that we would not take from a user either
        return False
