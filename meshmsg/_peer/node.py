"""The I/O thread of a peer: the control channel, the links to other peers, and the clock.

One thread owns the control sockets.  It reads what they bring, hands it to the publishing side
(`_publish.publisher`) or to the subscription it is for (`_receive.subscription_io`), sends what
these have to say, and comes round when something is due.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from meshmsg import _platform
from meshmsg._access.access_control import Gate
from meshmsg._access.connections import Connections
from meshmsg._access.keyring import Keyring
from meshmsg._groups.consumer import Member
from meshmsg._groups.consumer_joins import FAREWELL_S
from meshmsg._links.discovery_service import Doings, Finder
from meshmsg._links.inbound_peer import Client
from meshmsg._links.inbound_peers import Reception
from meshmsg._links.name_conflicts import Namesakes
from meshmsg._links.offers import Inlets, Offers
from meshmsg._links.outbound_peer import Link, LinkTable
from meshmsg._links.outbound_peers import Links
from meshmsg._links.peer_queries import Questions
from meshmsg._links.status_reports import StatusReports
from meshmsg._model.codecs import Codec
from meshmsg._model.config import PeerConfig, Record
from meshmsg._model.errors import ClosedError, PeerRefused
from meshmsg._model.event import Position
from meshmsg._model.message_fields import GROUPS_MAX
from meshmsg._model.topics import TopicFilter
from meshmsg._native import COMPILED
from meshmsg._peer.audit import Audit
from meshmsg._peer.draining import Draining
from meshmsg._peer.operations import Operations
from meshmsg._peer.served_streams import ServedStreams
from meshmsg._peer.stats import fates, inlet_stats
from meshmsg._publish.publisher import PublisherSide, Spans
from meshmsg._receive.background import Arrival, Background
from meshmsg._receive.committed_positions import release
from meshmsg._receive.incoming_stream import Join, StartAt
from meshmsg._receive.subscription_io import Intake
from meshmsg._replay.log_server import ReplayService
from meshmsg._replay.recorder import Recorder, RecorderIntake
from meshmsg._replay.recorder_service import Lender
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.guard import PAUSE_MAX_S, PAUSE_S, Guard
from meshmsg._runtime.turns import MESSAGES_A_TURN, Slice, next_beat
from meshmsg._wire import control as c
from meshmsg.recovery.stream.ledger import Ledger
from meshmsg.recovery.stream.loss_detector import NEVER
from meshmsg.recovery.stream.quotas import Quota
from meshmsg.transports.sockets import new_context
from meshmsg.transports.udp.multicast import Inlet, groups_of
from meshmsg.transports.wakeup import Wakeup
from meshmsg.transports.zmq.fanout import FanoutClient
from meshmsg.transports.zmq.port import settle_loans
from meshmsg.transports.zmq.work_queue import WorkInlet

log = logging.getLogger("meshmsg.peer")

AnyIntake = TypeVar("AnyIntake", bound=Intake)

OUTGOING_MAX = 100_000
LINGER_S = 1.0
#: How long those who dialled us may take to answer our good-bye.
BYE_S = 0.5


class _Call:
    """The wake-up of the I/O thread, as a thing to poll."""

    def __init__(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        self.pollable = wakeup.fd


class Node:
    """Everything of an open peer that is not the user's interface."""

    publisher: PublisherSide
    recorder: Recorder | None
    service: ReplayService
    gate: Gate
    connections: Connections
    questions: Questions
    finder: Finder
    offers: Offers
    links: Links
    namesakes: Namesakes
    reception: Reception
    operations: Operations
    audit: Audit
    draining: Draining

    def __init__(self, config: PeerConfig, software: str, spans: Spans | None = None) -> None:
        self.config = config
        self.tuning = config.tuning
        self.software = software
        keyring = None if config.security is None else Keyring(config.security)
        self.instance = _platform.randbits(63) if keyring is None else keyring.draw_number()
        self.counters: Counter[str] = Counter()
        self.guard = Guard(f"the I/O thread of {config.name}", self.counters)
        self.inlets = Inlets()
        self.intakes, self.members = self.inlets.intakes, self.inlets.members
        #: Held from when an inlet is made until it is known here: sockets that are left when the
        #: peer closes are nobody's.
        self.making = _platform.new_lock()
        self._stopping = False
        self._failure: str | None = None
        self._linger_s = LINGER_S
        self._last_turn = _platform.monotonic()
        self._ping_due = 0.0
        self._calls: deque[Callable[[], None]] = deque()
        self._outgoing: deque[tuple[Link | bytes, list[bytes]]] = deque()
        self._reported: set[Intake] = set()  # their consumers have come a good way
        self._muted: dict[Inlet, float] = {}
        self.hears_subscribers = True  #: the data socket's descriptor is waited for
        self._open_sockets(keyring)
        self._compose(keyring, spans)
        # What a turn does; each says when to come again.  After something came, all are called:
        # one may have to do with it.  When only the time has come for some, only those.
        self._ticks: list[Callable[[float], float]] = [
            self._on_ping,
            self._tend_publisher,
            self.reception.on_tick,
            self._tend_inlets,
            self.questions.on_tick,
            self.finder.on_tick,
            self.offers.on_tick,
            self.links.on_tick,
            self._unmute,
            self._end_farewells,
            self.gate.on_tick,
            self.connections.on_tick,
            self.audit.on_tick,
        ]
        if self.recorder is not None:
            self._ticks.append(self.recorder.lender.on_tick)
        self._dues = [0.0] * len(self._ticks)
        self._has_news = True
        self._thread = _platform.new_thread(self._run, f"meshmsg-{config.name}")
        self.stopped = _platform.new_event()

    def _open_sockets(self, keyring: Keyring | None) -> None:
        curve = None if keyring is None else keyring.curve
        self.context = new_context(curve, self.tuning.handshake_timeout_s)
        self._server = self.context.control_server()
        may = None
        if keyring is not None and keyring.apart:
            may = lambda user, prefix: self.gate.may_take(user, prefix)  # noqa: E731
        self._fanout = self.context.fanout_server(self.tuning.queue_frames, may)
        self._poller = self.context.poller()
        self._call = _Call(self.context.wakeup())

    def _compose(self, keyring: Keyring | None, spans: Spans | None) -> None:
        """Make the parts, and give each what it needs."""
        config, counters, guard = self.config, self.counters, self.guard
        who = (config, self.instance, self.software)
        addresses = self._server.addresses
        self._clients: dict[bytes, Client] = {}
        self._table = table = LinkTable()
        self._control = control = ControlSender(
            self.send,
            self._server.unsent.of,
            lambda link: self.gate.owner_of(link),
            counters,
        )
        self.post = control.post
        self._background = Background(self._poller)
        self.reports = StatusReports(self.send)
        epoch = _platform.time_ns() // 1000
        self.publisher = publisher = PublisherSide(
            config, epoch, control, self.wake, self.announce, spans
        )
        subscribers = publisher.subscribers
        self.recorder = None if config.record is None else self._new_recorder(config.record)
        lender = None if self.recorder is None else self.recorder.lender
        self.service = ReplayService(
            config.name, config.mesh, counters, lambda: self._streams.logs(), self.send
        )
        self._streams = ServedStreams(
            control,
            publisher,
            lender,
            self.service,
            lambda *order: self.operations.on_order(*order),
        )
        self.audit = Audit(publisher, self.wake, counters)
        self.gate = Gate(
            config,
            keyring,
            guard.notes,
            counters,
            table,
            self._clients,
            lambda: [outlet.stream for outlet in publisher.outlets()],
            self._streams.topics_of,
            publisher.links_of,
            self._cut_off,
        )
        self.context.user_of = self.gate.user_of
        self.service.may = lambda user, entry: self.gate.may_read(user, entry.topics)
        self.service.sign = self.gate.sign_logs
        self.connections = Connections(
            self.gate,
            self.context,
            self._server,
            self._fanout,
            self._poller,
            self.tuning.connections_max,
            self._look,
            self.wake,
        )
        self.questions = Questions(
            config.name,
            control,
            self.stats,
            self.ledger,
            self.trace,
            subscribers.start_refresh,
            subscribers.is_fresh,
            self.check_running,
        )
        self.finder = Finder(
            *who,
            control,
            addresses,
            table,
            self._clients,
            self._doings,
            lambda address: self.links.dial(address, given=False, found=True),
            lambda link: self.links.drop(link),
            self.call,
        )
        self.offers = Offers(self.tuning, control, guard.notes, table, self.inlets, self.reports)
        self.links = Links(
            *who,
            control,
            guard,
            self.context,
            self._poller,
            addresses,
            table,
            self._clients,
            self.gate,
            self.questions,
            self.finder,
            self.offers,
            publisher.infos,
            lambda: [] if lender is None else lender.names(),
        )
        self.namesakes = Namesakes(
            control, self.links, self.finder, addresses, publisher.infos, publisher.set_rivals
        )
        self.reception = Reception(
            *who,
            control,
            guard,
            self._server,
            self._fanout.addresses,
            self._clients,
            self.gate,
            self.connections,
            self.questions,
            self.finder,
            self.links,
            self.namesakes,
            self._streams,
            self.audit.note,
        )
        self.draining = Draining(f"meshmsg-{config.name}", self.members, self.label, guard)
        self.operations = Operations(
            config.name,
            config.data_dir,
            control,
            self.gate,
            publisher.groups,
            subscribers,
            publisher.durable.replay,
            self.audit,
            self.reception.put_out,
            self.draining.begin,
            counters,
        )

    # --- life ---

    def open(self) -> None:
        """Bind, and start the thread; raises `BindError`, `ConfigError`."""
        try:
            for feed in self.config.feeds:
                groups_of(feed.transport, self.config.interface)  # a wrong interface is told now
            self.gate.open()
            self.connections.open(self.service.forget_connection, self.publisher.forget_connection)
            for address in self.config.bind or (f"tcp://{_host(self.config.interface)}:*",):
                real = self._server.bind(address)
                self._fanout.bind(real)
            groups = self.publisher.groups
            groups.open(self.context, self.addresses, self._poller.add, self._poller.remove)
            self.publisher.open(self._fanout)
            self.audit.open(self.config.audit)
            if self.recorder is not None:
                self.recorder.open()
        except BaseException:  # Ctrl-C too
            self.connections.close()
            self.publisher.close(0)
            self._server.close(0)
            self._fanout.close(0)
            self.context.close()
            self._call.wakeup.close()
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
        if self._thread.is_alive() and _platform.current_thread() is not self._thread:
            self._thread.join(timeout + 2 * LINGER_S)

    def forked_parts(self) -> list[object]:
        """What users' objects lead to, for a child of a fork, where none of it may be used."""
        inlets = [*self.inlets.all().values(), *self.inlets.parting.values()]
        self.publisher.forget_routes()  # the compiled core has them at hand
        for inlet in inlets:
            deque(inlet.iterator, maxlen=0)  # whoever iterates has it at hand
        hub = self.finder.hub
        return [*inlets, *hub.conditions(), hub, self.publisher, self]

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
        if _platform.current_thread() is not self._thread:
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
        now = _platform.monotonic()
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
        ready = self._poller.wait(due - _platform.monotonic())
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
            _platform.sleep(PAUSE_S)  # what fails each time must not take all of the processor
        return not self._stopping

    def _on_readable(self, owner: Any) -> None:
        if owner is self._server:
            self.reception.on_readable()
        elif owner is self._call:
            self._call.wakeup.clear()
        elif isinstance(owner, Arrival):
            self._background.on_arrival(owner, _platform.monotonic())
        elif isinstance(owner, Inlet):
            self._read_inlet(owner)
        elif owner is self._fanout:
            self.publisher.subscribers.called = True
        elif self.connections.on_readable(owner):
            pass
        elif not self.publisher.groups.on_readable(owner, _platform.monotonic()):
            self.links.on_readable(owner)

    def _read_inlet(self, inlet: Inlet) -> None:
        """Multicast receivers ask or report; of a flood, only so much is read in a time."""
        muted_s = self.publisher.on_inlet(inlet, _platform.monotonic())
        if muted_s:
            self.counters["muted_inlets"] += 1
            self._poller.remove(inlet)
            self._muted[inlet] = _platform.monotonic() + muted_s

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

    def _tend_publisher(self, now: float) -> float:
        """Let it do what is due, and wait for the data socket's descriptor unless in vain.

        ZeroMQ calls for every few hundred messages that left, too, in the middle of a send.  While
        events are published the publisher looks for subscriptions without being called.
        """
        due = self.publisher.on_tick(now)
        in_vain = self.publisher.subscribers.called_in_vain
        if self.hears_subscribers and in_vain and not self.publisher.is_idle:
            self.hears_subscribers = False
            self._poller.remove(self._fanout)
        elif not self.hears_subscribers and self.publisher.is_idle:
            self.hears_subscribers = True
            self._poller.add(self._fanout)
        return due

    def _tend_inlets(self, now: float) -> float:
        failure: Exception | None = None
        for inlet in self.inlets.all().values():
            try:
                inlet.tend(now)
            except Exception as error:  # the others are looked after all the same
                failure = error
        if failure is not None:
            raise failure
        return self._look_again(now)

    def _on_ping(self, now: float) -> float:
        """Ask for signs of life, and say how far subscriptions are: both leave at once."""
        if now >= self._ping_due:
            self._ping_due = next_beat(now, self.tuning.ping_interval_s)
            settle_loans()  # of who has fallen silent
            self._server.unsent.sweep()
            self.links.on_ping(now)
            self.namesakes.on_ping(now)
            self.reception.on_ping(now)
            self.reception.forget_silent(now)
            for intake in list(self.intakes.values()):
                self.reports.want(intake, self._table.up())
            for member in list(self.members.values()):
                member.sign_of_life()
        while self._reported:
            self.reports.want(self._reported.pop(), self._table.up())
        return min(self._ping_due, self.reports.on_tick(now))

    def _look_again(self, now: float) -> float:
        """When to see whether a consumer is too busy to read, or to say what it has done."""
        says = [member.settle_due() for member in list(self.members.values())]
        due = self._background.look(list(self.intakes.values()), now, self._ping_due)
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
        self.reception.await_byes(_platform.monotonic() + min(BYE_S, self._linger_s))

    def _close_sockets(self) -> None:
        members = [*self.members.values(), *self.inlets.parting.values()]
        self.guard.each(
            [
                self.finder.close,
                self.connections.close,
                self.links.close,
                partial(self.publisher.close, self._linger_s),
                partial(self._server.close, self._linger_s),
                *(intake.close for intake in list(self.intakes.values())),
                *(member.close for member in members),
                self._close_context,
                settle_loans,
                self._call.wakeup.close,
                self.questions.close,
                self.stopped.set,
            ]
        )

    def _close_context(self) -> None:
        with self.making:
            self.context.close()

    # --- what others are told ---

    def announce(self) -> None:
        """Our streams have changed: tell everyone, from any thread."""
        self.call(self._announce)

    def _announce(self) -> None:
        self.reception.announce()
        self.links.hello_all()

    def _doings(self) -> Doings:
        """What our card says that we do."""
        streams = tuple(sorted(info.name for info in self.publisher.infos()))
        groups = {member.options.group for member in list(self.members.values())}
        roles = {
            "publisher": streams,
            "subscriber": self.intakes,
            "worker": groups,
            "recorder": self.recorder,
        }
        does = tuple(role for role, what in roles.items() if what)
        return Doings(streams, tuple(sorted(groups)[:GROUPS_MAX]), does)

    def _cut_off(self, changed: set[bytes], now: float) -> None:
        """Some may not do what they could: all come in anew, and those who may not stay out."""
        users = {key.hex().encode() for key in changed}
        self.reception.forget_users(users, now)
        self.service.forget_users(users)
        self.links.cut_off(changed)
        self.counters["cut_off"] += len(changed)
        count = self.connections.cut_all()
        log.warning("%d keys may do less than before: %d connections begin anew", len(users), count)
        self.publisher.renew_seals(now)

    def _look(self) -> int:
        """Cut connections, but for those of the two ports, that never finish what they send."""
        count = sum(link.client.look() for link in self._table.all())
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
            _platform.randbits(63),
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
        return self.context.fanout_client(self.tuning.queue_frames, apart=self.gate.apart)

    def add_intake(self, intake: Intake, name: str) -> None:
        """Subscribe with every publisher that is or will be there."""
        self.intakes[intake.sub] = intake
        self.inlets.names[intake.sub] = name
        feeds = [feed for feed in self.config.feeds if intake.filter.overlaps(feed.pattern)]
        if feeds:
            intake.notify(Join(tuple(feeds)))
        self._offer(intake)

    def drop_intake(self, intake: Intake) -> None:
        """Close a subscription: its last figures go to the publishers."""
        if self.intakes.pop(intake.sub, None) is None:
            return
        for link in self._table.up():
            self.reports.say(intake, link, intake.sources_of(link), closed=True)
        self.call(lambda: self.offers.forget(intake.sub))
        intake.close()
        release(intake.bookmarks)
        self.inlets.names.pop(intake.sub, None)

    def work_inlet(self, prefetch: int) -> WorkInlet:
        """A socket for a member of a work group."""
        self.check_running()
        if self._stopping or self.stopped.is_set():
            raise ClosedError("the peer is closed")
        return self.context.work_inlet(prefetch, apart=self.gate.apart)

    def add_member(self, member: Member, name: str) -> None:
        """Join the group at every publisher that is or will be there."""
        self.members[member.sub] = member
        self.inlets.names[member.sub] = name
        self._offer(member)

    def _offer(self, inlet: Intake | Member) -> None:
        met = [link.instance for link in self._table.up()]
        self.call(lambda: self.offers.offer_all(inlet, met))

    def drop(self, inlet: Intake | Member) -> None:
        """Close a subscription or a member."""
        if isinstance(inlet, Member):
            self.drop_member(inlet)
        else:
            self.drop_intake(inlet)

    def drop_member(self, member: Member) -> None:
        """A member leaves: what it has not done goes to others."""
        if self.members.pop(member.sub, None) is not None:
            self.call(lambda: self.offers.forget(member.sub))
            self.inlets.parting[member.sub] = member
            self.inlets.names.pop(member.sub, None)
            member.leave()
            self.wake()

    def see_off(self, timeout: float = NEVER) -> None:
        """Wait until publishers have answered the members that left; close their sockets."""
        if _platform.current_thread() is self._thread:
            return  # which has to read the answers
        deadline = _platform.monotonic() + min(timeout, FAREWELL_S)
        for member in list(self.inlets.parting.values()):
            member.seen_off.wait(max(0.0, deadline - _platform.monotonic()))
            self._part_with(member)

    def _end_farewells(self, now: float) -> float:
        """Close the sockets of members that left, whether or not anybody waits for that."""
        for member in list(self.inlets.parting.values()):
            if member.seen_off.is_set() or now >= member.left_at + FAREWELL_S:
                self._part_with(member)
        left = [member.left_at for member in list(self.inlets.parting.values())]
        return min(left, default=NEVER) + FAREWELL_S

    def _part_with(self, member: Member) -> None:
        member.close()  # first: whoever does not find it in `parting` takes it for closed
        self.inlets.parting.pop(member.sub, None)

    def tell_committed(self, intake: Intake, positions: list[Position]) -> None:
        """Publishers whose logs wait for this subscription need not keep what it is done with."""
        for link in self._table.up():
            self.offers.commit(link, intake, positions)

    def report(self, intake: Intake) -> None:
        """A consumer has come a good way: its publishers should know."""
        self._reported.add(intake)
        self.wake()

    # --- figures ---

    def refusal(self) -> PeerRefused | None:
        """The refusal, if nobody that we dialled will talk to us."""
        return self._table.refusal()

    def ledger(self) -> Ledger:
        """All rows that this peer can speak for, by the last reports."""
        rows = self.publisher.ledger_rows()
        for sub, intake in list(self.intakes.items()):
            rows += intake.rows(self.label(sub))
        return Ledger(tuple(rows))

    def trace(self, place: Position) -> dict[str, Any]:
        """What is known here of one event, as plain data."""
        publisher = self.publisher.trace(place)
        if publisher is not None and self.gate.apart:
            publisher.pop("topic", None)  # who may read it has it from the log
        return {
            "publisher": publisher,
            "has_log": any(entry.stream == place.stream for entry in self._streams.logs()),
            "subscriptions": fates(self.intakes, self.label, place),
        }

    def label(self, sub: int) -> str:
        """How a subscription of ours is called at its publishers."""
        return f"{self.config.name}/{self.inlets.names.get(sub) or '-'}#{sub & 0xFFFFFF:06x}"

    def stats(self) -> dict[str, Any]:
        """Figures of this peer, as plain data."""
        # Copies are made at once; other threads count while they are added up.
        counters = self.counters.copy() + self.publisher.counters.copy()
        counters += self.connections.tallies()
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
            "subscriptions": [self.inlet_stats(i) for i in list(self.intakes.values())],
            "members": [self.inlet_stats(m) for m in list(self.members.values())],
            **({} if self.recorder is None else {"recorder": self.recorder.stats()}),
            "links": self._table.stats(),
            "clients": [client.peer for client in list(self._clients.values())],
            "security": {**self.gate.stats(), **self.connections.stats()},
            "quotas": self.gate.shares(self._quotas()),
            "peers": [info.as_dict() for info in self.finder.peers()],
            "discovery": self.finder.stats(),
            "counters": dict(sorted(counters.items())),
        }

    def _quotas(self) -> dict[str, Quota]:
        quotas = {
            "subscriptions": self.publisher.subscribers.quota,
            "members": self.publisher.groups.quota,
            "prefixes": self._fanout.prefixes,
            "reads": self.service.quota,
        }
        if self.recorder is not None:
            quotas["recorded streams"] = self.recorder.lender.quota
        return quotas

    def _problem(self) -> str | None:
        """Why some part of the peer does not work; `None` while all do."""
        guards = [self.guard, self.service.guard, *self.publisher.guards(), *self.finder.guards()]
        if self.recorder is not None:
            guards += self.recorder.guards()
        return next((guard.problem for guard in guards if guard.problem is not None), None)

    def inlet_stats(self, inlet: Intake | Member) -> dict[str, Any]:
        """Figures of a subscription or of a member."""
        return inlet_stats(self.label(inlet.sub), inlet)


def _host(interface: str) -> str:
    return f"[{interface}]" if ":" in interface else interface
