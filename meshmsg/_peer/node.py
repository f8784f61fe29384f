"""The I/O thread of a peer: the control channel, the links to other peers, and the clock.

One thread owns the control sockets.  It reads what they bring, hands it to the publishing side
(`_publish.publisher`) or to the subscription it is for (`_receive.subscription_io`), sends what
these have to say, and comes round when something is due.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from meshmsg._access.access_control import Gate
from meshmsg._access.keyring import Keyring
from meshmsg._groups.consumer import Member
from meshmsg._groups.consumer_joins import FAREWELL_S
from meshmsg._links.discovery_service import Finder
from meshmsg._links.inbound_peers import Client, Reception
from meshmsg._links.name_conflicts import Namesakes
from meshmsg._links.outbound_peer import Link, data_address
from meshmsg._links.outbound_peers import Links
from meshmsg._links.peer_queries import Questions
from meshmsg._links.status_reports import StatusReports
from meshmsg._model.codecs import Codec
from meshmsg._model.config import PeerConfig, Record
from meshmsg._model.errors import ClosedError, PeerRefused, ProtocolError
from meshmsg._model.event import Position
from meshmsg._model.message_fields import HELLO_STREAMS_MAX
from meshmsg._model.topics import TopicFilter
from meshmsg._native import COMPILED
from meshmsg._peer.stats import inlet_stats
from meshmsg._publish.publisher import PublisherSide
from meshmsg._receive.background import Arrival, Background
from meshmsg._receive.committed_positions import release
from meshmsg._receive.incoming_stream import Join, RepairFrame, Said, StartAt, TailHint
from meshmsg._receive.subscription_io import Intake
from meshmsg._replay.log_server import LogEntry, ReplayService
from meshmsg._replay.recorder import Recorder, RecorderIntake
from meshmsg._replay.recorder_service import Lender
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.guard import PAUSE_MAX_S, PAUSE_S, Guard
from meshmsg._runtime.turns import MESSAGES_A_TURN, Slice
from meshmsg._wire import control as c
from meshmsg.recovery.stream.ledger import Ledger
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.transports.udp.multicast import Inlet, groups_of
from meshmsg.transports.wakeup import Wakeup
from meshmsg.transports.zmq.context import Context, Poller
from meshmsg.transports.zmq.control import ControlServer
from meshmsg.transports.zmq.fanout import FanoutClient, FanoutServer
from meshmsg.transports.zmq.per_publisher import ApartFanoutClient, ApartWorkInlet
from meshmsg.transports.zmq.port import settle_loans
from meshmsg.transports.zmq.work_queue import WorkInlet

log = logging.getLogger("meshmsg.peer")

AnyIntake = TypeVar("AnyIntake", bound=Intake)

OUTGOING_MAX = 100_000
#: Of a hello, what the names of streams take at most: all of it has to fit `SMALL_BYTES_MAX`.
HELLO_NAMES_BYTES_MAX = 32 * 1024
LINGER_S = 1.0
#: How long those who dialled us may take to answer our good-bye.
BYE_S = 0.5


class _Call:
    """The wake-up of the I/O thread, as a thing to poll."""

    def __init__(self) -> None:
        self.wakeup = Wakeup()
        self.pollable = self.wakeup.fd


class Node:
    """Everything of an open peer that is not the user's interface."""

    def __init__(self, config: PeerConfig, software: str) -> None:
        self.config = config
        self.tuning = config.tuning
        self.software = software
        keyring = None if config.security is None else Keyring(config.security)
        self.instance = secrets.randbits(63) if keyring is None else keyring.draw_number()
        self.epoch = time.time_ns() // 1000
        self.counters: Counter[str] = Counter()
        self.guard = Guard(f"the I/O thread of {config.name}", self.counters)
        self.notes = self.guard.notes
        self._control = control = ControlSender(
            self.send,
            lambda link: self._server.unsent.of(link),
            lambda link: self.reception.owner_of(link),
            self.counters,
        )
        self.post, self.post_pages = control.post, control.post_pages
        self.publisher = PublisherSide(config, self.epoch, control, self.wake, self.announce)
        self.intakes: dict[int, Intake] = {}
        self.members: dict[int, Member] = {}
        self.names: dict[int, str] = {}
        self.parting: dict[int, Member] = {}  #: have left, and wait for their publishers' answers
        curve = None if keyring is None else keyring.curve
        self._context = Context(curve, self.tuning.handshake_timeout_s)
        self.gate = Gate(self, keyring)
        self._server = ControlServer(self._context)
        may = self.gate.may_take if self.gate.apart else None
        self._fanout = FanoutServer(self._context, self.tuning.queue_frames, may)
        self._poller = Poller()
        self._background = Background(self._poller)
        self._call = _Call()
        self._calls: deque[Callable[[], None]] = deque()
        self._outgoing: deque[tuple[Link | bytes, list[bytes]]] = deque()
        self.reception = Reception(self)
        self._context.user_of = self.reception.user_of
        self.reports = StatusReports(self.send)
        self._reported: set[Intake] = set()  # their consumers have come a good way
        self._muted: dict[Inlet, float] = {}
        self.questions = Questions(self)
        self._stopping = False
        self._failure: str | None = None
        self._linger_s = LINGER_S
        self._last_turn = time.monotonic()
        self._ping_due = 0.0
        self.links = Links(self)
        self.recorder = None if config.record is None else self._new_recorder(config.record)
        self.service = ReplayService(
            config.name, config.mesh, self.counters, self._log_entries, self.send
        )
        self.service.may, self.service.sign = self.gate.may_read, self.gate.sign_logs
        self.finder = Finder(self)
        self.namesakes = Namesakes(self)
        # What a turn does; each says when to come again.  After something came, all are called:
        # one may have to do with it.  When only the time has come for some, only those.
        self._ticks: list[Callable[[float], float]] = [
            self.publisher.on_tick,
            self.reception.on_tick,
            self._tend_inlets,
            self._say_status,
            self.questions.on_tick,
            self.finder.on_tick,
            self.links.on_tick,
            self._on_ping,
            self._unmute,
            self._end_farewells,
            self.gate.on_tick,
        ]
        if self.recorder is not None:
            self._ticks.append(self.recorder.lender.on_tick)
        self._dues = [0.0] * len(self._ticks)
        self._has_news = True
        self._thread = threading.Thread(
            target=self._run, name=f"meshmsg-{config.name}", daemon=True
        )
        self.stopped = threading.Event()

    # --- life ---

    def open(self) -> None:
        """Bind, and start the thread; raises `BindError`, `ConfigError`."""
        try:
            for feed in self.config.feeds:
                groups_of(feed.transport, self.config.interface)  # a wrong interface is told now
            self.gate.open()
            for address in self.config.bind or (f"tcp://{_host(self.config.interface)}:*",):
                real = self._server.bind(address)
                self._fanout.bind(real)
            groups = self.publisher.groups
            groups.open(self._context, self.addresses, self._poller.add, self._poller.remove)
            self.publisher.open(self._fanout)
            if self.recorder is not None:
                self.recorder.open()
        except BaseException:  # Ctrl-C too
            self.gate.close()
            self.publisher.close(0)
            self._server.close(0)
            self._fanout.close(0)
            self._context.close()
            self.stopped.set()
            raise
        for owner in (self._server, self._fanout, self._call):
            self._poller.add(owner)
        for inlet in self.publisher.inlets():
            self._poller.add(inlet)
        for address in self.config.connect:
            self.links.dial(address)
        if self.recorder is not None:
            self.recorder.start()
        self.finder.open()
        self._thread.start()

    @property
    def addresses(self) -> list[str]:
        """Where others can connect to."""
        return list(self._server.addresses)

    def stop(self, timeout: float) -> None:
        """Say good-bye, end the thread, close the sockets."""
        self._linger_s = min(LINGER_S, max(0.5, timeout))
        self._stopping = True
        self.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout + 2 * LINGER_S)

    def wake(self) -> None:
        """Have the I/O thread come round now."""
        self._call.wakeup.set()

    def call(self, function: Callable[[], None]) -> None:
        """Run something on the I/O thread."""
        self._calls.append(function)
        self.wake()

    def send(self, to: Link | bytes, parts: list[bytes]) -> bool:
        """Queue a control message, from any thread."""
        if len(self._outgoing) >= OUTGOING_MAX:
            self.counters["outgoing_full"] += 1
            return False
        if isinstance(to, bytes) and not self._server.may_queue(to, parts):
            self.counters["unsent_full"] += 1
            return False
        self._outgoing.append((to, parts))
        if threading.current_thread() is not self._thread:
            self.wake()
        return True

    # --- the thread ---

    def _run(self) -> None:
        self.guard.drive(self._turn)
        if self.guard.ended is not None:  # whoever waits is told
            self.publisher.gates.closed_text = self._failure = self.guard.ended
        self.guard.each([self._leave, self.publisher.finish, self.service.stop])
        self._close_sockets()

    def check_running(self) -> None:
        """Raise `ClosedError` if the I/O thread has ended by an error: nothing works without it."""
        if self._failure is not None:
            raise ClosedError(self._failure)

    def _turn(self) -> bool:
        """Do what is due and what comes in; a part that fails costs itself only."""
        if self._stopping:
            return False
        now = time.monotonic()
        self._forgive_sleep(now)
        failing, part = "", Slice()
        for n, tick in enumerate(self._ticks):
            if not self._has_news and now < self._dues[n]:
                continue
            try:
                self._dues[n] = tick(now)
            except Exception:
                self._dues[n] = now + PAUSE_MAX_S
                failing = tick.__qualname__
                self.guard.failed(failing)
        self._drain_outgoing()
        part.give_way()
        due = now if self._calls or self._outgoing else min(self._dues)
        ready = self._poller.wait(due - time.monotonic())
        part = Slice()
        self._has_news = bool(ready or self._calls or self._outgoing)
        for owner in ready:
            try:
                self._on_readable(owner)
            except Exception:
                failing = f"what comes in at a {type(owner).__name__}"
                self.guard.failed(failing)
        while self._calls:
            self.guard.each([self._calls.popleft()])
        self._drain_outgoing()
        part.give_way()
        if failing:
            self.guard.has_trouble(f"{self.guard.who} goes on without {failing}: the log says why")
            time.sleep(PAUSE_S)  # a part that fails each time must not take all of the processor
        return not self._stopping

    def _on_readable(self, owner: Any) -> None:
        if owner is self._server:
            self.reception.on_readable()
        elif owner is self._call:
            self._call.wakeup.clear()
        elif isinstance(owner, Arrival):
            self._background.on_arrival(owner, time.monotonic())
        elif isinstance(owner, Inlet):
            self._read_inlet(owner)
        elif owner is self._fanout:
            self.publisher.subscribers.called = True
        elif self.gate.on_readable(owner):
            pass
        elif not self.publisher.groups.on_readable(owner, time.monotonic()):
            self.links.on_readable(owner)

    def _read_inlet(self, inlet: Inlet) -> None:
        """Multicast receivers ask or report; of a flood, only so much is read in a time."""
        muted_s = self.publisher.on_inlet(inlet, time.monotonic())
        if muted_s:
            self.counters["muted_inlets"] += 1
            self._poller.remove(inlet)
            self._muted[inlet] = time.monotonic() + muted_s

    def _unmute(self, now: float) -> float:
        for inlet in [inlet for inlet, due in self._muted.items() if due <= now]:
            del self._muted[inlet]
            self._poller.add(inlet)
        return min(self._muted.values(), default=NEVER)

    def _forgive_sleep(self, now: float) -> None:
        """If this process did not run for a while, nobody else is to blame for the silence."""
        slept = now - self._last_turn
        if slept > self.tuning.ping_interval_s * 2:
            for client in self.reception.clients.values():
                client.last_seen += slept
            self.links.forgive(slept)
            self.finder.forgive(slept)
        self._last_turn = now

    def _tend_inlets(self, now: float) -> float:
        failure: Exception | None = None
        for inlet in self.inlets().values():
            try:
                inlet.tend(now)
            except Exception as error:  # the others are looked after all the same
                failure = error
        if failure is not None:
            raise failure
        return self._look_again(now)

    def _say_status(self, now: float) -> float:
        while self._reported:
            self.reports.want(self._reported.pop(), self.links.up())
        return self.reports.on_tick(now)

    def _on_ping(self, now: float) -> float:
        if now >= self._ping_due:
            self._ping_due = now + self.tuning.ping_interval_s
            settle_loans()  # of who has fallen silent
            self._server.unsent.sweep()
            self.links.on_ping(now)
            self.namesakes.on_ping(now)
            self.reception.on_ping(now)
            self.reception.forget_silent(now)
            for intake in list(self.intakes.values()):
                self.reports.want(intake, self.links.up())
            for member in list(self.members.values()):
                member.sign_of_life()
        return self._ping_due

    def _look_again(self, now: float) -> float:
        """When to see whether a consumer is too busy to read, or to say what it has done."""
        says = [member.settle_due() for member in list(self.members.values())]
        due = self._background.look(list(self.intakes.values()), now)
        return min(due, *says) if says else due

    def _drain_outgoing(self, most: int = MESSAGES_A_TURN // 4) -> None:  # one answer
        for _ in range(min(len(self._outgoing), most)):
            to, parts = self._outgoing.popleft()
            sent = self._server.send(to, parts) if isinstance(to, bytes) else to.send(parts)
            if not sent:
                self.counters["unsent"] += 1

    def _leave(self) -> None:
        self.reception.leave()
        self.links.leave()
        self._drain_outgoing(OUTGOING_MAX)
        self.reception.await_byes(time.monotonic() + min(BYE_S, self._linger_s))

    def _close_sockets(self) -> None:
        members = [*self.members.values(), *self.parting.values()]
        self.guard.each(
            [
                self.finder.close,
                self.gate.close,
                self.links.close,
                partial(self.publisher.close, self._linger_s),
                partial(self._server.close, self._linger_s),
                *(intake.close for intake in list(self.intakes.values())),
                *(member.close for member in members),
                self._context.close,
                settle_loans,
                self._call.wakeup.close,
                self.questions.close,
                self.stopped.set,
            ]
        )

    # --- what others are told ---

    def stream_names(self) -> list[str]:
        """The streams that can be had here, our own and recorded ones."""
        recorded = [] if self.recorder is None else self.recorder.lender.names()
        return [info.name for info in self.publisher.infos()] + recorded

    def hello(self, address: str, nonce: bytes) -> c.Hello:
        """What we say to a peer that we dial."""
        return c.Hello(
            peer=self.config.name,
            instance=self.instance,
            mesh=self.config.mesh,
            dialled=address,
            listen=self.addresses,
            streams=_some_names(self.stream_names()),
            software=self.software,
            nonce=nonce,
        )

    def announce(self) -> None:
        """Our streams have changed: tell everyone, from any thread."""
        self.call(self._announce)

    def _announce(self) -> None:
        self.reception.announce()
        self.links.hello_all()

    def _log_entries(self) -> list[LogEntry]:
        """The logs that others may read here."""
        recorded = [] if self.recorder is None else self.recorder.lender.entries()
        own = [
            LogEntry(o.stream, o.config.topics, o.codec.name, o.log.folder, o.epoch, o.log.next)
            for o in self.publisher.outlets()
            if o.log is not None
        ]
        return own + recorded

    def clients(self) -> list[Client]:
        """Those who dialled us."""
        return list(self.reception.clients.values())

    def client_items(self) -> list[tuple[bytes, Client]]:
        """They, and how to reach them."""
        return list(self.reception.clients.items())

    def look(self) -> int:
        """Cut connections, but for those of the two ports, that never finish what they send."""
        count = sum(link.client.look() for link in self.links.all())
        count += sum(intake.look() for intake in list(self.intakes.values()))
        count += sum(member.look() for member in list(self.members.values()))
        return count + self.publisher.groups.look()

    # --- subscriptions ---

    def new_intake(
        self,
        kind: type[AnyIntake],
        topics: TopicFilter,
        codec: Codec | None,
        type_: Any,
        start: StartAt,
    ) -> AnyIntake:
        """A subscription that has yet to be added."""
        config = self.config
        return kind(
            secrets.randbits(63),
            topics,
            self._fanout_client(),
            self.tuning,
            config.mesh,
            self.post,
            self.report,
            codec,
            type_,
            start,
            config.interface,
            config.second_interface or "",
            config.security,
        )

    def _new_recorder(self, config: Record) -> Recorder:
        subs = self.publisher.subscribers.subs
        lender = Lender(
            self.config,
            self.instance,
            self._control,
            self.wake,
            self.announce,
            lambda sub: sub in subs,
        )
        return Recorder(
            self.config,
            config,
            lender,
            self.counters,
            self._record,
            lambda intake: self.call(partial(self.drop_intake, intake)),
        )

    def _record(self, topics: TopicFilter, start: StartAt) -> RecorderIntake:
        intake = self.new_intake(RecorderIntake, topics, None, Any, start)
        self.add_intake(intake, "record")
        return intake

    def _fanout_client(self) -> FanoutClient:
        """A data socket for a subscription."""
        self.check_running()
        if self._stopping or self.stopped.is_set():
            raise ClosedError("the peer is closed")
        kind = ApartFanoutClient if self.gate.apart else FanoutClient
        return kind(self._context, self.tuning.queue_frames)

    def inlets(self) -> dict[int, Intake | Member]:
        """All subscriptions and members of groups, by their numbers."""
        return {**self.intakes, **self.members}

    def add_intake(self, intake: Intake, name: str) -> None:
        """Subscribe with every publisher that is or will be there."""
        self.intakes[intake.sub] = intake
        self.names[intake.sub] = name
        feeds = [feed for feed in self.config.feeds if intake.filter.overlaps(feed.pattern)]
        if feeds:
            intake.notify(Join(tuple(feeds)))
        self._offer(intake)

    def drop_intake(self, intake: Intake) -> None:
        """Close a subscription: its last figures go to the publishers."""
        if self.intakes.pop(intake.sub, None) is None:
            return
        for link in self.links.up():
            self.reports.say(intake, link, intake.sources_of(link), closed=True)
        self.call(lambda: self.links.forget(intake.sub))
        intake.close()
        release(intake.bookmarks)
        self.names.pop(intake.sub, None)

    def work_inlet(self, prefetch: int) -> WorkInlet:
        """A socket for a member of a work group."""
        self.check_running()
        if self._stopping or self.stopped.is_set():
            raise ClosedError("the peer is closed")
        return (ApartWorkInlet if self.gate.apart else WorkInlet)(self._context, prefetch)

    def add_member(self, member: Member, name: str) -> None:
        """Join the group at every publisher that is or will be there."""
        self.members[member.sub] = member
        self.names[member.sub] = name
        self._offer(member)

    def _offer(self, inlet: Intake | Member) -> None:
        met = self.links.linked()
        self.call(lambda: self.links.offer_all(inlet, met))

    def drop(self, inlet: Intake | Member) -> None:
        """Close a subscription or a member."""
        if isinstance(inlet, Member):
            self.drop_member(inlet)
        else:
            self.drop_intake(inlet)

    def drop_member(self, member: Member) -> None:
        """A member leaves: what it has not done goes to others."""
        if self.members.pop(member.sub, None) is not None:
            self.call(lambda: self.links.forget(member.sub))
            self.parting[member.sub] = member
            self.names.pop(member.sub, None)
            member.leave()
            self.wake()

    def see_off(self, timeout: float = NEVER) -> None:
        """Wait until publishers have answered the members that left; close their sockets."""
        if threading.current_thread() is self._thread:
            return  # which has to read the answers
        deadline = time.monotonic() + min(timeout, FAREWELL_S)
        for member in list(self.parting.values()):
            member.seen_off.wait(max(0.0, deadline - time.monotonic()))
            self._part_with(member)

    def _end_farewells(self, now: float) -> float:
        """Close the sockets of members that left, whether or not anybody waits for that."""
        for member in list(self.parting.values()):
            if member.seen_off.is_set() or now >= member.left_at + FAREWELL_S:
                self._part_with(member)
        left = [member.left_at for member in list(self.parting.values())]
        return min(left, default=NEVER) + FAREWELL_S

    def _part_with(self, member: Member) -> None:
        member.close()  # first: whoever does not find it in `parting` takes it for closed
        self.parting.pop(member.sub, None)

    def on_silence(self, link: Link) -> None:
        """A publisher is not going to answer members that have left it."""
        for member in list(self.parting.values()):
            member.on_silence(link)

    def on_group_message(self, link: Link, message: c.Joined | c.Unjoined | c.Kept) -> None:
        """A publisher has taken one of our members, or not, or has kept what it said."""
        parted = self.parting.get(message.sub)
        member = self.members.get(message.sub) or parted
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
            member.on_joined(link, message, data_address(link.address, message.work))
            member.tend(time.monotonic(), force=True)
            return
        member.on_unjoined(link, message)
        member.tend(time.monotonic(), force=True)
        if not message.refused:
            self.links.rejoin(link, member)

    def tell_committed(self, intake: Intake, positions: list[Position]) -> None:
        """Publishers whose logs wait for this subscription need not keep what it is done with."""
        for link in self.links.up():
            self.links.commit(link, intake, positions)

    def report(self, intake: Intake) -> None:
        """A consumer has come a good way: its publishers should know."""
        self._reported.add(intake)
        self.wake()

    def on_link_message(self, link: Link, message: c.Message, frame: bytes | None) -> None:
        """Something for one of our subscriptions."""
        if isinstance(message, c.Pong | c.Bye):
            final = isinstance(message, c.Bye)
            hints = [TailHint(tail.stream, tail.epoch, tail.next, final) for tail in message.tails]
            if isinstance(message, c.Pong):
                self.links.follow(message.recorded)
                hints += [
                    TailHint(t.stream, t.epoch, t.next, lender=link) for t in message.recorded
                ]
            for intake in list(self.intakes.values()):
                for hint in hints:
                    intake.notify(hint)
            return
        member = self.members.get(message.sub)  # type: ignore[union-attr]
        if member is not None and isinstance(message, c.Gone):
            member.notify(message)
        target = self.intakes.get(message.sub)  # type: ignore[union-attr]
        if target is not None:
            self._hand_in(target, link, message, frame)

    def _hand_in(self, intake: Intake, link: Link, message: c.Message, frame: bytes | None) -> None:
        if isinstance(message, c.Repair):
            if frame is None:
                raise ProtocolError("a repair without a frame")
            intake.notify(RepairFrame(link, message.stream, frame, message.answers))
        elif isinstance(message, c.StatusPlease):
            intake.tend(time.monotonic(), force=True)
            self.reports.want(intake, [link], message.number)
        elif isinstance(message, c.Subscribed | c.Gone):
            if isinstance(message, c.Subscribed):
                self.links.unconfirmed.settled(link, message.sub, message.stream)
                intake.refusals.pop(message.stream, None)
            intake.notify(Said(link, message.stream, message))
        elif isinstance(message, c.Unsubscribed):
            self.links.on_unsubscribed(link, intake, message)
        elif isinstance(message, c.Evicted | c.Rekey):
            intake.notify(message)
        intake.tend(time.monotonic())

    # --- figures ---

    def refusal(self) -> PeerRefused | None:
        """The refusal, if nobody that we dialled will talk to us."""
        return self.links.refusal()

    def ledger(self) -> Ledger:
        """All rows that this peer can speak for, by the last reports."""
        rows = self.publisher.ledger_rows()
        for sub, intake in list(self.intakes.items()):
            rows += intake.rows(self.label(sub))
        return Ledger(tuple(rows))

    def label(self, sub: int) -> str:
        """How a subscription of ours is called at its publishers."""
        return f"{self.config.name}/{self.names.get(sub) or '-'}#{sub & 0xFFFFFF:06x}"

    def stats(self) -> dict[str, Any]:
        """Figures of this peer, as plain data."""
        # Copies are made at once; other threads count while they are added up.
        counters = self.counters.copy() + self.publisher.counters.copy() + self.gate.tallies()
        return {
            "peer": self.config.name,
            "mesh": self.config.mesh,
            "software": self.software,
            "protocol": c.PROTOCOL_VERSION,
            "compiled": COMPILED,
            "problem": self._problem(),
            "addresses": self.addresses,
            "streams": self.publisher.stats(),
            "name_in_use": [
                {"stream": stream, "address": address}
                for stream, address in self.publisher.gates.rivals.items()
            ],
            "subscriptions": [self._intake_stats(i) for i in list(self.intakes.values())],
            "members": [self._intake_stats(m) for m in list(self.members.values())],
            **({} if self.recorder is None else {"recorder": self.recorder.stats()}),
            "links": self.links.stats(),
            "clients": [client.peer for client in self.clients()],
            "security": self.gate.stats(),
            "quotas": self.gate.quotas(),
            "peers": [info.as_dict() for info in self.finder.peers()],
            "discovery": self.finder.stats(),
            "counters": dict(sorted(counters.items())),
        }

    def _problem(self) -> str | None:
        """Why some part of the peer does not work; `None` while all do."""
        guards = [self.guard, self.service.guard, *self.publisher.guards(), *self.finder.guards()]
        if self.recorder is not None:
            guards += self.recorder.guards()
        return next((guard.problem for guard in guards if guard.problem is not None), None)

    def _intake_stats(self, inlet: Intake | Member) -> dict[str, Any]:
        return inlet_stats(self.label(inlet.sub), inlet)


def _some_names(streams: list[str]) -> list[str]:
    """Names for a hello: that there are streams is what it says, and a `welcome` says which."""
    some: list[str] = []
    left = HELLO_NAMES_BYTES_MAX
    for name in streams[:HELLO_STREAMS_MAX]:
        left -= len(name.encode())
        if left < 0 and some:
            break
        some.append(name)
    return some


def _host(interface: str) -> str:
    return f"[{interface}]" if ":" in interface else interface
