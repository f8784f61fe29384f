"""Links: the connections that this peer dialled, and what it learns over them.

A link goes through: `dialling` (no connection), `greeting` (hello was sent), `up` (welcomed),
`refused` (the other side will not, or we will not), `left` (it said good-bye, or is given up).
ZeroMQ redials by itself; each new connection starts with a hello.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING, Any

from meshmsg._groups.consumer import Member
from meshmsg._groups.consumer_messages import Asked, Parted
from meshmsg._links.outbound_peer import PAGE_S, Link, Listing, data_address, reachable
from meshmsg._links.taken_streams import TakenStreams
from meshmsg._model.errors import MeshError, PeerRefused, ProtocolError
from meshmsg._model.event import Position
from meshmsg._model.message_fields import ENTRIES_MAX
from meshmsg._model.topics import Pattern
from meshmsg._receive.incoming_stream import Attach, Complete, Detach, Lend, Sweep
from meshmsg._receive.subscription_io import Intake
from meshmsg._runtime.turns import MESSAGES_A_TURN, Slice
from meshmsg._wire import control as c
from meshmsg.recovery.stream.meetings import Meetings
from meshmsg.recovery.stream.time_shares import NEVER
from meshmsg.recovery.stream.unconfirmed import Unconfirmed
from meshmsg.transports.zmq.connection_monitor import (
    SHARE_OF_BACKS,
    connections_allowed,
    files_over,
)
from meshmsg.transports.zmq.context import LOCKED_OUT, ONE_HAS_NO_KEY
from meshmsg.transports.zmq.control import ControlClient

if TYPE_CHECKING:
    from meshmsg._peer.node import Node

#: What is said to one subscription.
FOR_SUBSCRIPTIONS = (
    c.Subscribed,
    c.Unsubscribed,
    c.Rekey,
    c.Repair,
    c.Gone,
    c.Evicted,
    c.StatusPlease,
)

log = logging.getLogger("meshmsg.peer")

LINKS_MAX = 10_000
#: A connection that ended before its handshake may be an accident; so many in a row are not.
LOCKED_OUT_TIMES = 3
#: Peers that are dialled back and have yet to answer, and addresses of one of them.  Others that
#: wait for it take turns of so many seconds.
BACKS_MAX = 64
BACKS_PER_PEER_MAX = 4
BACK_S = 2.0
#: Files that a connection takes which we dial.
FILES_PER_LINK = 5
#: Pings in the time after which a peer counts as gone, to one that has no streams.
CALM_PINGS = 3
#: How often streams are looked for that can be forgotten, within the time that it takes.
SWEEPS = 8
#: ZeroMQ gives up where it was refused: so often we try again ourselves.
KNOCK_AGAIN_S = 2.0


class Links:
    """All links of a node; used from the I/O thread only, but for what says otherwise."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._poller = node._poller
        self._links: dict[str, Link] = {}
        self._by_owner: dict[int, Link] = {}
        self.unconfirmed: Unconfirmed[Link] = Unconfirmed()
        self._meetings = Meetings()
        self._taken = TakenStreams(node.notes, node.counters, node.tuning.streams_max)
        self._sweep_due = 0.0
        self._later: dict[str, tuple[int, str]] = {}  # to be dialled back, in this order
        self._waiting_for_time: set[Link] = set()  # not read until their budgets fill

    def dial(self, address: str, *, given: bool = True, found: bool = False) -> None:
        """Connect to a peer and keep it connected."""
        if address in self._links:
            return
        if len(self._links) >= LINKS_MAX or (not given and files_over()):
            self._node.counters["links_full"] += 1
            return
        link = Link(address, self._client(address, 0), given=given)
        link.found = found
        self._links[address] = link
        self._watch(link)

    def on_hello(self, hello: c.Hello, host: str) -> None:
        """A peer dialled us: if it has streams, dial it too, where it says it listens."""
        inlets, has_streams = self._node.inlets(), bool(hello.streams)
        self._meetings.on_hello(hello.instance, inlets, has_streams=has_streams)
        if not has_streams or any(link.instance == hello.instance for link in self._links.values()):
            return  # what is new it announces to those who dialled it, and we did
        backs = [link.back for link in self._waiting()] + [of for of, _ in self._later.values()]
        if backs.count(hello.instance) >= BACKS_PER_PEER_MAX:
            return
        for address in hello.listen:
            target = reachable(address, host)
            if target and target not in self._links:
                self._make_room()
                self._dial_back(target, hello.instance, hello.peer)
                return

    def _waiting(self) -> list[Link]:
        """Return who is dialled back and has yet to answer, the oldest first."""
        return [k for k in self._links.values() if k.back is not None and not k.peer]

    def _backs_max(self) -> int:
        files = connections_allowed(BACKS_MAX * FILES_PER_LINK, SHARE_OF_BACKS)
        return max(1, files // FILES_PER_LINK)

    def _make_room(self) -> None:
        """Give up the oldest that has not answered for a newer one: who is there does at once."""
        waiting = self._waiting()
        if len(waiting) >= self._backs_max():
            self._node.counters["dial_backs_dropped"] += 1
            self._put_off(waiting[0])

    def _put_off(self, link: Link) -> None:
        self.drop(link)
        if link.back is not None and not self._node.finder.is_on:  # which has a list of its own
            self._later[link.address] = (link.back, link.called)

    def _dial_back(self, address: str, instance: int, name: str) -> None:
        self._later.pop(address, None)
        self.dial(address, given=False)
        if (link := self._links.get(address)) is not None:
            link.back, link.called = instance, name
            self._node.finder.adopt(link, instance, name)
        else:
            self._later[address] = (instance, name)

    def _take_turns(self, now: float) -> None:
        """Let others have a turn whom we could not dial back yet."""
        for link in self._waiting() if self._later else []:
            if now - link.dialled_at >= BACK_S:
                self._put_off(link)
        room = self._backs_max() - len(self._waiting())
        for address, (instance, name) in list(self._later.items())[: max(0, room)]:
            self._dial_back(address, instance, name)

    def forget_back(self, instance: int) -> None:
        """A peer that dialled us is gone: if it never answered, it is not dialled any more."""
        for link in [k for k in self._waiting() if k.back == instance]:
            self.drop(link)
        for address in [a for a, (of, _) in self._later.items() if of == instance]:
            del self._later[address]

    def _client(self, address: str, door: int) -> ControlClient:
        curve = self._node._context.curve
        key = b"" if curve is None else curve.doors[door % len(curve.doors)]
        return ControlClient(self._node._context, address, key)

    def _watch(self, link: Link) -> None:
        for owner in (link.client, link.client.monitor):
            self._by_owner[id(owner)] = link
            self._poller.add(owner)

    def _unwatch(self, link: Link) -> None:
        for owner in (link.client, link.client.monitor):
            self._by_owner.pop(id(owner), None)
            self._poller.remove(owner)
        self._waiting_for_time.discard(link)
        link.client.close()

    def on_readable(self, owner: Any) -> None:
        """Something came on a link or its monitor."""
        link = self._by_owner.get(id(owner))
        if link is None:
            return
        monitor = link.client.monitor
        # Always first: what comes on a new connection must not pass for words of the one before.
        for connected in list(monitor.read()):
            self._on_connection(link, connected)
        if monitor.failure:
            self._on_failure(link, monitor.failure)
            monitor.failure = ""
        if owner is monitor or link.client.monitor is not monitor:
            return
        part, client, began = Slice(), link.client, time.thread_time()
        for _ in range(MESSAGES_A_TURN):
            parts = client.recv()
            if parts is None:
                return
            link.last_seen = now = time.monotonic()
            try:
                self._on_message(link, parts)
            except MeshError as error:
                self._node.counters["bad_control"] += 1
                log.debug("a bad control message from %s was dropped: %s", link.address, error)
            except Exception:
                self._node.guard.failed("a control message from who was dialled")
            ended = time.thread_time()
            link.budget.spend(ended - began, now=now)
            began = ended
            if id(client) not in self._by_owner:  # it is closed by now
                return
            if link.budget.due > now:
                self._node.counters["answers_delayed"] += 1
                self._waiting_for_time.add(link)
                self._poller.remove(client)
                return
            if part.is_over():
                return

    def _go_on(self, now: float) -> float:
        """Read those again who have waited for their time; returns when to come again."""
        for link in [link for link in self._waiting_for_time if link.budget.due <= now]:
            self._waiting_for_time.discard(link)
            self._poller.add(link.client)
        return min((link.budget.due for link in self._waiting_for_time), default=NEVER)

    def _on_connection(self, link: Link, connected: bool) -> None:
        if connected:
            link.reconnects += 1
            link.last_seen = time.monotonic()
            link.failures, link.user = 0, b""
            self._greet(link)
        elif link.state in ("up", "greeting"):
            log.info("the connection to %s (%s) is lost", link.peer or "?", link.address)
            link.state = "dialling"
            self._node.on_silence(link)

    def _on_failure(self, link: Link, reason: str) -> None:
        """It did not let us in, or we it."""
        curve = self._node._context.curve
        if curve is None and reason != ONE_HAS_NO_KEY:
            return  # it went away, or is no peer at all
        self._node.counters["locked_out"] += 1
        link.failures += 1
        doors = 1 if curve is None else len(curve.doors)
        if reason == LOCKED_OUT and link.failures % LOCKED_OUT_TIMES == 0 and doors > 1:
            link.door += 1  # the mesh key is being changed, and it has another one in use
            self._knock(link)
        if reason != LOCKED_OUT or link.failures >= LOCKED_OUT_TIMES * doors:
            self._refuse(link, reason)
            link.knock_due = time.monotonic() + KNOCK_AGAIN_S

    def _knock(self, link: Link) -> None:
        """Try anew, from the start."""
        self._unwatch(link)
        link.client = self._client(link.address, link.door)
        self._watch(link)

    def cut_off(self, keys: set[bytes]) -> None:
        """The holders of these keys may do less than before, or nothing: begin anew with them."""
        for link in list(self._links.values()):
            if link.user and bytes.fromhex(link.user.decode()) in keys:
                log.warning("%s (%s) is cut off", link.peer, link.address)
                self._let_go(link, at_once=True)
                link.streams, link.recorded, link.user = {}, {}, b""
                self._redial(link)

    def _greet(self, link: Link) -> None:
        link.state = "greeting"
        self._say_hello(link)

    def _say_hello(self, link: Link) -> None:
        link.nonce = self._node.gate.nonce()
        hello = self._node.hello(link.address, link.nonce)
        link.told = len(self._node.stream_names())
        self._node.post(link, hello)

    def _on_message(self, link: Link, parts: list[bytes]) -> None:
        if not 1 <= len(parts) <= 2:
            raise ProtocolError(f"an answer of {len(parts)} parts")
        version = c.message_version(parts[0])
        if version != c.PROTOCOL_VERSION:
            self._refuse(link, c.version_mismatch(version))
            return
        message = c.decode_message(parts[0], self._node.questions.kinds_awaited(link))
        if not self._node.gate.is_believed(link, message):
            raise ProtocolError(f"{type(message).__name__} of somebody who may not say it")
        if isinstance(message, c.Welcome):
            self._on_welcome(link, message)
        elif isinstance(message, c.Refused):
            self._refuse(link, message.reason)
        elif isinstance(message, c.Unknown):
            self._greet(link)
        elif isinstance(message, c.Answer):
            self._node.questions.on_answer(link, message)
        elif isinstance(message, c.Pong):
            if message.instance != link.instance:
                self._greet(link)
            else:
                self._node.on_link_message(link, self._node.gate.told(link, message), None)
        elif isinstance(message, c.Here):
            self._node.finder.on_here(link.instance, link.host, message)
        elif isinstance(message, c.Ask):
            if self._node.gate.permitted(link.user, message) is not None:
                self._node.questions.on_ask(link, message, time.monotonic())
        elif isinstance(message, c.Bye):
            if link.state != "left":
                self._node.post(link, c.Bye(self._node.instance, []))
            link.state = "left"
            self._node.on_silence(link)
            self._node.finder.on_bye(message.instance)
            self._node.on_link_message(link, self._node.gate.told(link, message), None)
        elif isinstance(message, c.Joined | c.Unjoined | c.Kept):
            self._node.on_group_message(link, message)
        elif isinstance(message, FOR_SUBSCRIPTIONS):
            self._node.on_link_message(link, message, parts[1] if len(parts) == 2 else None)
        else:
            raise ProtocolError(f"{type(message).__name__} is not an answer")

    def _refuse(self, link: Link, reason: str) -> None:
        if link.reason != reason and not link.found:  # else discovery tells, and tries again
            self._node.notes.error("%s: %s", link.address, reason)
            self._node.counters["refused"] += 1
        link.state = "refused"
        link.reason = reason
        self._tell_complete()
        for intake in list(self._node.intakes.values()):
            intake.wake()
        for member in list(self._node.members.values()):
            member.wake()

    def _on_welcome(self, link: Link, welcome: c.Welcome) -> None:
        if welcome.version != c.PROTOCOL_VERSION:
            self._refuse(link, c.version_mismatch(welcome.version))
            return
        if welcome.mesh != self._node.config.mesh:
            ours = self._node.config.mesh
            self._refuse(
                link, f"peer {welcome.peer!r} of mesh {welcome.mesh!r} meets mesh {ours!r}"
            )
            return
        reason = "" if welcome.page else self._node.gate.identify(link, welcome)
        if reason:
            self._refuse(link, reason)
            link.knock_due = time.monotonic() + KNOCK_AGAIN_S  # the list may change
            return
        if welcome.page and (link.listing is None or not link.listing.is_next(welcome, link)):
            self._say_hello(link)
            raise ProtocolError(f"page {welcome.page} of a welcome, and not the one before")
        page = self._node.gate.screen(link, welcome)
        listing, link.listing = link.listing, None
        if self._is_taken(link, page):
            return
        if listing is None or not page.page:
            listing = self._begin_listing(link, page)
        self._take_page(link, listing, page)
        if page.more:
            link.listing = listing
            return
        link.streams, link.recorded = listing.streams, listing.recorded
        if link.told != len(self._node.stream_names()):
            self._say_hello(link)  # a stream of ours was declared while it was under way
        if not listing.again:
            self._tell_complete()

    def _begin_listing(self, link: Link, welcome: c.Welcome) -> Listing:
        """Take down who welcomes us, by the first page."""
        listing = Listing(link, welcome.instance)
        address = data_address(link.address, welcome.fanout)
        if link.data_address and link.data_address != address:
            for intake in list(self._node.intakes.values()):
                intake.notify(Detach(link.data_address))
        link.data_key = self._data_key(link, welcome)
        link.state, link.reason, link.knock_due, link.taken = "up", "", None, False
        link.peer, link.instance, link.data_address = welcome.peer, welcome.instance, address
        if not listing.again:
            link.streams, link.recorded = {}, {}
            link.untaken.clear()
            self._node.finder.on_welcome(link)
        return listing

    def _take_page(self, link: Link, listing: Listing, page: c.Welcome) -> None:
        """Offer our subscriptions what stands on a page."""
        own = {info.name for info in self._node.publisher.infos()}
        streams = listing.add(listing.streams, page.streams)
        lent = [i for i in page.recorded if i.name not in own and i.name not in listing.streams]
        recorded = listing.add(listing.recorded, lent)
        link.streams.update(streams)
        link.recorded.update(recorded)
        listing.pages += 1
        listing.due = time.monotonic() + PAGE_S
        inlets, names = self._node.inlets(), frozenset((*streams, *recorded))
        offers = self._meetings.on_welcome(
            link.instance, names, inlets, again=listing.again, begins=not page.page, more=page.more
        )
        for offer in offers:
            anew = not listing.again and offer.sub not in listing.members
            if self._introduce(link, inlets[offer.sub], offer.streams, offer.born, anew=anew):
                listing.members.add(offer.sub)

    def _data_key(self, link: Link, welcome: c.Welcome) -> bytes:
        curve = self._node._context.curve
        if curve is None:
            return b""
        return welcome.key if link.user else curve.doors[link.door % len(curve.doors)]

    def _tell_complete(self) -> None:
        """Nobody has to wait for further peers, if there are none."""
        if not self._is_one_awaited():
            for intake in list(self._node.intakes.values()):
                intake.notify(Complete())

    def _is_taken(self, link: Link, welcome: c.Welcome) -> bool:
        """Whether the peer, or one of its name, is linked already; sees to the consequences."""
        for other in list(self._links.values()):
            if other is link or other.state != "up":
                continue
            if other.instance == welcome.instance:
                log.debug("%s and %s are the same peer", link.address, other.address)
                self._node.finder.on_same(link.address, welcome.instance)
                if link.given:
                    link.state = "duplicate"
                else:
                    self._forget(link)
                return True
            if any(info.name in other.streams for info in welcome.streams):
                self._refuse(
                    link, f"the name {welcome.peer!r} is in use at {other.address} already"
                )
                link.taken = True
                link.knock_due = time.monotonic() + KNOCK_AGAIN_S  # the other one may leave
                self._node.post(link, c.Taken(self._node.finder.where(other)))
                return True
        return False

    def _forget(self, link: Link) -> None:
        self._links.pop(link.address, None)
        self._unwatch(link)

    def drop(self, link: Link) -> None:
        """Give up a connection; what it sent and is not yet read is not lost."""
        link.state = "left"
        self._forget(link)
        self._let_go(link)

    def _let_go(self, link: Link, *, at_once: bool = False) -> None:
        self.unconfirmed.forget(link=link)
        if link.data_address:
            for intake in list(self._node.intakes.values()):
                intake.notify(Detach(link.data_address, at_once))
                intake.tend(time.monotonic())
        for member in list(self._node.members.values()):
            member.notify(Parted(link, "it is not there any more"))
        self._node.on_silence(link)

    # --- subscriptions ---

    def offer_all(self, inlet: Intake | Member, met: Iterable[int]) -> None:
        """A new subscription: subscribe wherever its topics can occur.

        It has `met` the peers that were linked when it was made.  A connection that has broken
        meanwhile does not change that: streams that they declare until it is back are new to it.
        """
        for link in self.up():
            if self._meetings.meet(link.instance, inlet.sub):
                self._introduce(link, inlet, {*link.streams, *link.recorded})
        for instance in met:
            self._meetings.meet(instance, inlet.sub)

    def forget(self, sub: int) -> None:
        """A subscription is closed."""
        self.unconfirmed.forget(sub=sub)
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
        for intake in list(self._node.intakes.values()):
            self._take_up(intake, intake.incoming.moved(tails))

    def _take_up(self, intake: Intake, names: Set[str]) -> None:
        """Have a subscription hear of everybody who has recorded these streams."""
        for link in self.up() if names else ():
            self._lend(link, intake, names & link.recorded.keys(), frozenset())

    def _lend(self, link: Link, intake: Intake, names: Set[str], born: Set[str]) -> None:
        """A recorder has streams that the subscription wants: history, and what others miss."""
        infos = self._wanted(link, intake, link.recorded, names)
        if not infos:
            return
        asked = [info for info in infos if intake.wants_history(info.name) or not self._has(info)]
        intake.notify(Lend(link, infos, frozenset(info.name for info in asked)))
        intake.tend(time.monotonic())
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
        return any(info.name in link.streams for link in self.up())

    def _is_one_awaited(self) -> bool:
        """Whether a peer that the user named has yet to answer for the first time."""
        waiting = ("dialling", "greeting")
        return any(k.given and k.state in waiting and not k.peer for k in self._links.values())

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
        self.unconfirmed.asked(link, intake.sub, names, now=time.monotonic())
        patterns = [pattern.text for pattern in intake.filter.patterns]
        name, hold = self._node.names.get(intake.sub, ""), intake.hold
        self._node.post_pages(
            link, lambda some, _: c.Subscribe(intake.sub, patterns, some, name, hold), starts
        )

    def _offer(self, link: Link, intake: Intake, names: Set[str], born: Set[str]) -> None:
        infos = self._wanted(link, intake, link.streams, names)
        if not infos:
            return
        more = not names <= born and self._is_one_awaited()
        back = {info.name for info in infos if intake.has_forgotten(info.name)}
        intake.notify(Attach(link, link.data_address, infos, more, link.data_key))
        intake.tend(time.monotonic())
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
                self._node.notes.error(text, link.peer, name, message.reason, by=link.address)
            intake.refusals[name] = message.reason
            if message.refused:
                self.unconfirmed.settled(link, intake.sub, name)
        if not message.refused:
            self.unconfirmed.waits(link, intake.sub, streams, now=time.monotonic())

    def on_tick(self, now: float) -> float:
        """Ask again for subscriptions that nobody has confirmed; returns when to come again."""
        again: dict[tuple[int, int], tuple[Link, Intake, list[c.StreamInfo]]] = {}
        for link, sub, name in self.unconfirmed.due(now=now, most=ENTRIES_MAX):
            intake = self._node.intakes.get(sub)
            info = link.streams.get(name) or link.recorded.get(name)
            if intake is None or info is None:
                self.unconfirmed.settled(link, sub, name)
            elif link.state == "up":
                again.setdefault((id(link), sub), (link, intake, []))[2].append(info)
                self._node.counters["subscriptions_repeated"] += 1
        for link, intake, infos in again.values():
            self._subscribe(link, intake, infos)
        return min(self.unconfirmed.next_due, self._go_on(now))

    def commit(self, link: Link, intake: Intake, positions: Iterable[Position]) -> None:
        """Tell a publisher what a subscription is done with that its logs wait for; any thread."""
        places = [
            c.Place(position.stream, position.epoch, position.seq)
            for position in positions
            if position.stream in link.streams and link.streams[position.stream].durable
        ]
        if places:
            self._node.post_pages(link, lambda some, _: c.Commit(intake.sub, some), places)

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
            name = self._node.names.get(member.sub, "")
            member.notify(Asked(link, infos, name, born, anew))
            member.tend(time.monotonic())
        return bool(infos)

    # --- time ---

    def on_ping(self, now: float) -> None:
        """Ask every peer for a sign of life; redial those that gave none."""
        self._take_turns(now)
        self._drop_left()
        if now >= self._sweep_due:
            self._sweep_due = now + self._node.tuning.stream_forget_s / SWEEPS
            self._sweep(now)
        limit = now - self._node.tuning.peer_timeout_s
        for link in list(self._links.values()):
            if link.state in ("up", "greeting") and link.last_seen < limit:
                log.info("%s (%s) gives no sign of life", link.peer or "?", link.address)
                self._redial(link)
            elif link.state == "up":
                self._ping(link, now)
                if link.listing is not None and now >= link.listing.due:
                    link.listing = None
                    self._say_hello(link)  # it tells all of it anew
            elif link.state == "greeting":
                self._greet(link)
            elif link.state == "refused" and link.knock_due is not None and now >= link.knock_due:
                link.knock_due = now + KNOCK_AGAIN_S
                self._knock(link)
            elif link.state == "dialling" and self._is_given_up(link, now):
                self._knock(link)

    def _ping(self, link: Link, now: float) -> None:
        """Ask for a sign of life; one without streams has nothing else to tell, and is asked less.

        Everyone in a mesh is connected to everyone: most of the pings go to such peers.
        """
        if now >= link.ping_due:
            calm = not (link.streams or link.recorded)
            link.ping_due = now + self._node.tuning.peer_timeout_s / CALM_PINGS if calm else 0.0
            self._node.post(link, c.Ping(0))

    def _drop_left(self) -> None:
        """Give up peers that were dialled back and are gone: who comes back dials us again."""
        here = {client.instance for client in self._node.clients()}
        for link in list(self._links.values()):
            ours = link.given or link.found or link.back is None or not link.peer
            if not ours and link.state != "up" and not here & {link.back, link.instance}:
                self.drop(link)

    def _sweep(self, now: float) -> None:
        """Have streams forgotten whose publishers are gone, and use the room that there is."""
        gone_s = self._node.tuning.stream_forget_s
        inlets, up = self._node.inlets(), self.up()
        for inlet in inlets.values():
            inlet.notify(Sweep(gone_s))
            inlet.tend(now)
        used = {name for inlet in inlets.values() for name in inlet.streams()}
        self._taken.keep(used.union(*(link.streams for link in up)))
        clients = {client.instance for client in self._node.clients()}
        self._meetings.sweep(clients | {link.instance for link in up}, gone_s, now=now)
        for link in [link for link in up if link.untaken and self._taken.has_room(link)]:
            names, link.untaken = link.untaken, set()
            for inlet in inlets.values():
                self._introduce(link, inlet, names)

    @staticmethod
    def _is_given_up(link: Link, now: float) -> bool:
        """Return True when a connection ended and ZeroMQ began no other one for a while.

        It redials what broke, but gives up for good, and tells nobody, where it met a socket that
        no control channel talks to: the data port of another peer that had the port before.
        """
        ended_at = link.client.monitor.ended_at
        return ended_at is not None and now - ended_at >= KNOCK_AGAIN_S

    def _redial(self, link: Link) -> None:
        self._knock(link)
        link.state = "dialling"
        link.last_seen = time.monotonic()

    def forgive(self, slept: float) -> None:
        """This process did not run for a while."""
        for link in self._links.values():
            link.last_seen += slept

    def hello_all(self) -> None:
        """Greet again: our streams have changed."""
        for link in self.up():
            self._say_hello(link)

    def leave(self) -> None:
        """Tell everyone that we leave."""
        for link in self.up():
            self._node.post(link, c.Bye(self._node.instance, []))

    def close(self) -> None:
        """Close all."""
        for link in list(self._links.values()):
            link.client.close(0.2)

    # --- any thread ---

    def up(self) -> list[Link]:
        """Links that are up."""
        return [link for link in list(self._links.values()) if link.state == "up"]

    def linked(self) -> list[int]:
        """Peers that are linked, by the numbers of their starts."""
        return [link.instance for link in self.up()]

    def get(self, address: str) -> Link | None:
        """The link that dialled an address."""
        return self._links.get(address)

    def all(self) -> list[Link]:
        """All links."""
        return list(self._links.values())

    def refusal(self) -> PeerRefused | None:
        """The refusal, if every address that the user gave refused."""
        given = [link for link in list(self._links.values()) if link.given]
        if given and all(link.state == "refused" for link in given):
            return PeerRefused(given[0].address, given[0].reason)
        return None

    def stats(self) -> list[dict[str, Any]]:
        """The state of each link."""
        return [
            {
                "address": link.address,
                "state": link.state,
                "peer": link.peer,
                "reason": link.reason,
                "streams": sorted(link.streams),
                "reconnects": max(0, link.reconnects),
            }
            for link in list(self._links.values())
        ]


def _wants(intake: Intake | Member, info: c.StreamInfo) -> bool:
    try:
        return intake.filter.overlaps(Pattern(info.topics))
    except ValueError:  # a pattern that we would not take from a user either
        return False
