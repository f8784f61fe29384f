"""Links: the connections that this peer dialled, and what it learns over them.

A link goes through: `dialling` (no connection), `greeting` (hello was sent), `up` (welcomed),
`refused` (the other side will not, or we will not), `left` (it said good-bye, or is given up).
ZeroMQ redials by itself; each new connection starts with a hello.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from meshmsg import _platform
from meshmsg._access.access_control import Gate
from meshmsg._links.discovery_service import Finder
from meshmsg._links.inbound_peer import Client
from meshmsg._links.offers import Offers
from meshmsg._links.outbound_peer import (
    PAGE_S,
    Link,
    LinkTable,
    Listing,
    data_address,
    reachable,
)
from meshmsg._links.peer_queries import Questions
from meshmsg._model.config import PeerConfig
from meshmsg._model.errors import MeshError, ProtocolError
from meshmsg._model.message_fields import HELLO_STREAMS_MAX
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.guard import Guard
from meshmsg._runtime.turns import MESSAGES_A_TURN, Slice
from meshmsg._wire import control as c
from meshmsg.recovery.stream.time_shares import NEVER
from meshmsg.transports.zmq.connection_monitor import (
    SHARE_OF_BACKS,
    connections_allowed,
    files_over,
)
from meshmsg.transports.zmq.context import LOCKED_OUT, ONE_HAS_NO_KEY, Poller
from meshmsg.transports.zmq.control import ControlClient
from meshmsg.transports.zmq.sockets import ZmqSockets

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
#: Of a hello, what the names of streams take at most: all of it has to fit `SMALL_BYTES_MAX`.
HELLO_NAMES_BYTES_MAX = 32 * 1024
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
#: ZeroMQ gives up where it was refused: so often we try again ourselves.
KNOCK_AGAIN_S = 2.0


class Links:
    """Dials other peers, and talks to them; on the I/O thread only."""

    def __init__(
        self,
        config: PeerConfig,
        instance: int,
        software: str,
        control: ControlSender,
        guard: Guard,
        context: ZmqSockets,
        poller: Poller,
        addresses: Sequence[str],
        table: LinkTable,
        clients: dict[bytes, Client],
        gate: Gate,
        questions: Questions,
        finder: Finder,
        offers: Offers,
        infos: Callable[[], list[c.StreamInfo]],
        recorded: Callable[[], list[str]],
    ) -> None:
        self.table = table
        self._links = table.by_address
        self._config = config
        self._instance = instance
        self._software = software
        self._control = control
        self._guard = guard
        self._context = context
        self._poller = poller
        self._addresses = addresses  # our own
        self._clients = clients
        self._gate = gate
        self._questions = questions
        self._finder = finder
        self._offers = offers
        self._infos = infos
        self._recorded = recorded  # names of streams that are recorded here
        self._by_owner: dict[int, Link] = {}
        self._later: dict[str, tuple[int, str]] = {}  # to be dialled back, in this order
        self._waiting_for_time: set[Link] = set()  # not read until their budgets fill

    def dial(self, address: str, *, given: bool = True, found: bool = False) -> None:
        """Connect to a peer and keep it connected."""
        if address in self._links:
            return
        if len(self._links) >= LINKS_MAX or (not given and files_over()):
            self._control.counters["links_full"] += 1
            return
        link = Link(address, self._client(address, 0), given=given)
        link.found = found
        self._links[address] = link
        self._watch(link)

    def on_hello(self, hello: c.Hello, host: str) -> None:
        """A peer dialled us: if it has streams, dial it too, where it says it listens."""
        self._offers.on_hello(hello)
        if not hello.streams or any(k.instance == hello.instance for k in self._links.values()):
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
            self._control.counters["dial_backs_dropped"] += 1
            self._put_off(waiting[0])

    def _put_off(self, link: Link) -> None:
        self.drop(link)
        if link.back is not None and not self._finder.is_on:  # which has a list of its own
            self._later[link.address] = (link.back, link.called)

    def _dial_back(self, address: str, instance: int, name: str) -> None:
        self._later.pop(address, None)
        self.dial(address, given=False)
        if (link := self._links.get(address)) is not None:
            link.back, link.called = instance, name
            self._finder.adopt(link, instance, name)
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
        curve = self._context.curve
        key = b"" if curve is None else curve.doors[door % len(curve.doors)]
        return self._context.control_client(address, key)

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
        part, client, began = Slice(), link.client, _platform.thread_time()
        for _ in range(MESSAGES_A_TURN):
            parts = client.recv()
            if parts is None:
                return
            link.last_seen = now = _platform.monotonic()
            try:
                self._on_message(link, parts)
            except MeshError as error:
                self._control.counters["bad_control"] += 1
                log.debug("a bad control message from %s was dropped: %s", link.address, error)
            except Exception:
                self._guard.failed("a control message from who was dialled")
            ended = _platform.thread_time()
            link.budget.spend(ended - began, now=now)
            began = ended
            if id(client) not in self._by_owner:  # it is closed by now
                return
            if link.budget.due > now:
                self._control.counters["answers_delayed"] += 1
                self._waiting_for_time.add(link)
                self._poller.remove(client)
                return
            if part.is_over():
                return

    def on_tick(self, now: float) -> float:
        """Read those again who have waited for their time; returns when to come again."""
        for link in [link for link in self._waiting_for_time if link.budget.due <= now]:
            self._waiting_for_time.discard(link)
            self._poller.add(link.client)
        return min((link.budget.due for link in self._waiting_for_time), default=NEVER)

    def _on_connection(self, link: Link, connected: bool) -> None:
        if connected:
            link.reconnects += 1
            link.last_seen = _platform.monotonic()
            link.failures, link.user, link.nonce = 0, b"", b""
            self._greet(link)
        elif link.state in ("up", "greeting"):
            text = "the connection to %s (%s) is lost"
            self._guard.notes.info(text, link.peer or "?", link.address, by=link.host)
            link.state = "dialling"
            self._offers.on_silence(link)

    def _on_failure(self, link: Link, reason: str) -> None:
        """It did not let us in, or we it."""
        curve = self._context.curve
        if curve is None and reason != ONE_HAS_NO_KEY:
            return  # it went away, or is no peer at all
        self._control.counters["locked_out"] += 1
        link.failures += 1
        doors = 1 if curve is None else len(curve.doors)
        if reason == LOCKED_OUT and link.failures % LOCKED_OUT_TIMES == 0 and doors > 1:
            link.door += 1  # the mesh key is being changed, and it has another one in use
            self._knock(link)
        if reason != LOCKED_OUT or link.failures >= LOCKED_OUT_TIMES * doors:
            self._refuse(link, reason)
            link.knock_due = _platform.monotonic() + KNOCK_AGAIN_S

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
                self._offers.let_go(link, at_once=True)
                link.streams, link.recorded, link.user = {}, {}, b""
                self._redial(link)

    def _greet(self, link: Link) -> None:
        link.state = "greeting"
        self._say_hello(link)

    def _say_hello(self, link: Link) -> None:
        link.nonce = link.nonce or self._gate.nonce()  # one: answers to earlier hellos prove it too
        streams = self._stream_names()
        link.told = len(streams)
        hello = c.Hello(
            peer=self._config.name,
            instance=self._instance,
            mesh=self._config.mesh,
            dialled=link.address,
            listen=list(self._addresses),
            streams=_some_names(streams),
            software=self._software,
            nonce=link.nonce,
        )
        self._control.post(link, hello)

    def _stream_names(self) -> list[str]:
        """The streams that can be had here, our own and recorded ones."""
        return [info.name for info in self._infos()] + self._recorded()

    def _on_message(self, link: Link, parts: list[bytes | memoryview]) -> None:
        if not 1 <= len(parts) <= 2:
            raise ProtocolError(f"an answer of {len(parts)} parts")
        version = c.message_version(parts[0])
        if version != c.PROTOCOL_VERSION:
            self._refuse(link, c.version_mismatch(version))
            return
        message = c.decode_message(parts[0], self._questions.kinds_awaited(link))
        if not self._gate.is_believed(link, message):
            raise ProtocolError(f"{type(message).__name__} of somebody who may not say it")
        if isinstance(message, c.Welcome):
            self._on_welcome(link, message)
        elif isinstance(message, c.Refused):
            self._refuse(link, message.reason)
        elif isinstance(message, c.Unknown):
            self._greet(link)
        elif isinstance(message, c.Answer):
            self._questions.on_answer(link, message)
        elif isinstance(message, c.Pong):
            if message.instance != link.instance:
                self._greet(link)
            else:
                self._offers.on_link_message(link, self._gate.told(link, message), None)
        elif isinstance(message, c.Here):
            self._finder.on_here(link.instance, link.host, message)
        elif isinstance(message, c.Ask):
            if self._gate.permitted(link.user, message) is not None:
                self._questions.on_ask(link, message, _platform.monotonic())
        elif isinstance(message, c.Bye):
            if link.state != "left":
                self._control.post(link, c.Bye(self._instance, []))
            link.state = "left"
            self._offers.on_silence(link)
            self._finder.on_bye(message.instance)
            self._offers.on_link_message(link, self._gate.told(link, message), None)
        elif isinstance(message, c.Joined | c.Unjoined | c.Kept):
            self._offers.on_group_message(link, message)
        elif isinstance(message, FOR_SUBSCRIPTIONS):
            self._offers.on_link_message(link, message, parts[1] if len(parts) == 2 else None)
        else:
            raise ProtocolError(f"{type(message).__name__} is not an answer")

    def _refuse(self, link: Link, reason: str) -> None:
        if link.reason != reason and not link.found:  # else discovery tells, and tries again
            self._guard.notes.error("%s: %s", link.address, reason)
            self._control.counters["refused"] += 1
        link.state = "refused"
        link.reason = reason
        self._offers.on_refused()

    def _on_welcome(self, link: Link, welcome: c.Welcome) -> None:
        if welcome.version != c.PROTOCOL_VERSION:
            self._refuse(link, c.version_mismatch(welcome.version))
            return
        if welcome.mesh != self._config.mesh:
            ours = self._config.mesh
            self._refuse(
                link, f"peer {welcome.peer!r} of mesh {welcome.mesh!r} meets mesh {ours!r}"
            )
            return
        reason = "" if welcome.page else self._gate.identify(link, welcome)
        if reason:
            self._refuse(link, reason)
            link.knock_due = _platform.monotonic() + KNOCK_AGAIN_S  # the list may change
            return
        if welcome.page and (link.listing is None or not link.listing.is_next(welcome, link)):
            self._say_hello(link)
            raise ProtocolError(f"page {welcome.page} of a welcome, and not the one before")
        page = self._gate.screen(link, welcome)
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
        if link.told != len(self._stream_names()):
            self._say_hello(link)  # a stream of ours was declared while it was under way
        if not listing.again:
            self._offers.tell_complete()

    def _begin_listing(self, link: Link, welcome: c.Welcome) -> Listing:
        """Take down who welcomes us, by the first page."""
        listing = Listing(link, welcome.instance)
        address = data_address(link.address, welcome.fanout)
        if link.data_address and link.data_address != address:
            self._offers.on_moved(link)
        link.data_key = self._data_key(link, welcome)
        link.state, link.reason, link.knock_due, link.taken = "up", "", None, False
        link.peer, link.instance, link.data_address = welcome.peer, welcome.instance, address
        if not listing.again:
            link.streams, link.recorded = {}, {}
            link.untaken.clear()
            self._finder.on_welcome(link)
        return listing

    def _take_page(self, link: Link, listing: Listing, page: c.Welcome) -> None:
        """Offer our subscriptions what stands on a page."""
        own = {info.name for info in self._infos()}
        streams = listing.add(listing.streams, page.streams)
        lent = [i for i in page.recorded if i.name not in own and i.name not in listing.streams]
        recorded = listing.add(listing.recorded, lent)
        link.streams.update(streams)
        link.recorded.update(recorded)
        listing.pages += 1
        listing.due = _platform.monotonic() + PAGE_S
        self._offers.on_page(link, listing, page, frozenset((*streams, *recorded)))

    def _data_key(self, link: Link, welcome: c.Welcome) -> bytes:
        curve = self._context.curve
        if curve is None:
            return b""
        return welcome.key if link.user else curve.doors[link.door % len(curve.doors)]

    def _is_taken(self, link: Link, welcome: c.Welcome) -> bool:
        """Whether the peer, or one of its name, is linked already; sees to the consequences."""
        for other in list(self._links.values()):
            if other is link or other.state != "up":
                continue
            if other.instance == welcome.instance:
                log.debug("%s and %s are the same peer", link.address, other.address)
                self._finder.on_same(link.address, welcome.instance)
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
                link.knock_due = _platform.monotonic() + KNOCK_AGAIN_S  # the other one may leave
                self._control.post(link, c.Taken(self._finder.where(other)))
                return True
        return False

    def _forget(self, link: Link) -> None:
        self._links.pop(link.address, None)
        self._unwatch(link)

    def drop(self, link: Link) -> None:
        """Give up a connection; what it sent and is not yet read is not lost."""
        link.state = "left"
        self._forget(link)
        self._offers.let_go(link)

    # --- time ---

    def on_ping(self, now: float) -> None:
        """Ask every peer for a sign of life; redial those that gave none."""
        self._take_turns(now)
        self._drop_left()
        self._offers.on_ping({client.instance for client in self._clients.values()}, now)
        limit = now - self._config.tuning.peer_timeout_s
        for link in list(self._links.values()):
            if link.state in ("up", "greeting") and link.last_seen < limit:
                text = "%s (%s) gives no sign of life"
                self._guard.notes.info(text, link.peer or "?", link.address, by=link.host)
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
            tuning = self._config.tuning
            rest_s = tuning.peer_timeout_s / CALM_PINGS
            # Turns come a little early or late: the one that is meant must not be passed over.
            link.ping_due = now + rest_s - tuning.ping_interval_s / 4 if calm else 0.0
            self._control.post(link, c.Ping(0))

    def _drop_left(self) -> None:
        """Give up peers that were dialled back and are gone: who comes back dials us again."""
        here = {client.instance for client in self._clients.values()}
        for link in list(self._links.values()):
            ours = link.given or link.found or link.back is None or not link.peer
            if not ours and link.state != "up" and not here & {link.back, link.instance}:
                self.drop(link)

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
        link.last_seen = _platform.monotonic()

    def forgive(self, slept: float) -> None:
        """This process did not run for a while."""
        for link in self._links.values():
            link.last_seen += slept

    def hello_all(self) -> None:
        """Greet again: our streams have changed."""
        for link in self.table.up():
            self._say_hello(link)

    def leave(self) -> None:
        """Tell everyone that we leave."""
        for link in self.table.up():
            self._control.post(link, c.Bye(self._instance, []))

    def close(self) -> None:
        """Close all."""
        for link in list(self._links.values()):
            link.client.close(0.2)


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
