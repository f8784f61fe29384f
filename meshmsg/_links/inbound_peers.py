"""Those who dial this peer: their requests, on the I/O thread.

Whatever they ask is first put to the gate (`_access.access_control`), which knows who they are and
what they may.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from meshmsg._links.discovery_service import ITSELF
from meshmsg._model.errors import MeshError, ProtocolError
from meshmsg._replay.log_server import Asker
from meshmsg._runtime.turns import MESSAGES_A_TURN, Slice
from meshmsg._wire import control as c
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.recovery.stream.time_shares import TimeShares
from meshmsg.transports.zmq.control import Request

if TYPE_CHECKING:
    from meshmsg._peer.node import Node

log = logging.getLogger("meshmsg.peer")

T = TypeVar("T")

CLIENTS_MAX = 10_000
#: How long what a connection that was cut has said may take to be read.
CUT_S = 10.0
NOT_PERMITTED = "its key does not permit it"


class Client:
    """A peer that dialled us."""

    __slots__ = ("greeted", "host", "instance", "last_seen", "nonce", "peer", "user")

    def __init__(self, hello: c.Hello, host: str, user: bytes, now: float) -> None:
        self.peer = hello.peer
        self.instance = hello.instance
        self.nonce = hello.nonce  #: what it wants us to prove our key with
        self.host = host
        self.user = user  #: who it is, as its key says
        self.last_seen = now
        self.greeted = False  #: told who we are


class Reception:
    """Reads the control socket that others dial."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._gate = node.gate
        self.clients: dict[bytes, Client] = {}
        self._shares: TimeShares[Owner, Request] = TimeShares()
        #: When connections were cut: what they had said before is not heeded any more.
        self._cut: dict[bytes, float] = {}

    def on_readable(self) -> None:
        """Requests have come: heed them, or let them wait if their sender has no time left."""
        part, began = Slice(), time.thread_time()
        for _ in range(MESSAGES_A_TURN):
            request = self._node._server.recv()
            if request is None:
                self._gate.all_read()
                return
            self._gate.spoke(request.fd, request.size)
            now = time.monotonic()
            client = self.clients.get(request.identity)
            if client is not None and client.user != request.user:
                self._forget(request.identity, now)  # somebody took over its routing id
                client = None
            if client is not None:
                client.last_seen = now
            owner = self._owner(request, client)
            if request.identity in self._cut:
                self._node.counters["requests_dropped"] += 1
            elif self._shares.must_wait(request.identity, owner, now=now):
                self._let_wait(request, owner, now)
            else:
                began = self._heed(request, client, owner, began, now)
            if part.is_over():
                return

    def on_tick(self, now: float) -> float:
        """Heed those who have waited for their time; returns when to come again."""
        part, began = Slice(), time.thread_time()
        while self._shares and (request := self._shares.take(now=now)) is not None:
            client = self.clients.get(request.identity)
            began = self._heed(request, client, self._owner(request, client), began, now)
            if part.is_over():
                break
        return self._shares.due()

    def on_ping(self, now: float) -> None:
        """Forget those who used little of our time, and those who were cut a while ago."""
        self._shares.sweep(now=now)
        self._cut = {link: at for link, at in self._cut.items() if now - at < CUT_S}

    def _owner(self, request: Request, client: Client | None) -> Owner:
        """Return whose time a request takes: of a host, all who have not said who they are."""
        link = b"" if client is None else request.identity
        return self._gate.owner(request.user, request.host, link)

    def _heed(
        self, request: Request, client: Client | None, owner: Owner, began: float, now: float
    ) -> float:
        """Do what is asked for, and count the time since it began; returns when it was done."""
        try:
            self._on_request(request, client, now)
        except MeshError as error:  # a bad message, or good form with bad content
            self._node.counters["bad_control"] += 1
            where = request.host or "?"
            log.debug("a bad control message from %s was dropped: %s", where, error)
        except Exception:
            self._node.guard.failed("a control message")
        ended = time.thread_time()
        self._shares.spend(owner, ended - began, now=now)
        return ended

    def _let_wait(self, request: Request, owner: Owner, now: float) -> None:
        self._node.counters["requests_delayed"] += 1
        last = self._shares.put(request.identity, owner, request, request.size)
        if last is not None:
            self._cut[last.identity] = now
            if last.identity in self.clients:
                self._forget(last.identity, now, silent=True)
            self._gate.cut_greedy(last.fd)

    def _on_request(self, request: Request, client: Client | None, now: float) -> None:
        node, identity, parts = self._node, request.identity, request.parts
        if len(parts) != 1:
            raise ProtocolError(f"a request of {len(parts)} parts")
        version = c.message_version(parts[0])
        if version != c.PROTOCOL_VERSION:
            reason = c.version_mismatch(version)
            node.counters["refused"] += 1
            where = request.host or "?"
            node.notes.error("refused a peer at %s: %s", where, reason, by=where)
            node.send(identity, [c.encode_refusal(reason, version)])
            return
        said = c.decode_message(parts[0], node.questions.kinds_awaited(identity))
        message = self._gate.permitted(request.user, said)
        if message is None and isinstance(said, c.Join):
            node.post(identity, c.Unjoined(said.sub, NOT_PERMITTED, refused=True))
        elif message is None and isinstance(said, c.Subscribe):
            node.publisher.subscribers.refuse(identity, said, NOT_PERMITTED, final=True)
        if node.recorder is not None and client is not None and message is not None:
            message = node.recorder.lender.on_request(identity, message)
        if message is None:
            return
        if isinstance(message, c.Hello):
            self._on_hello(request, message, now)
        elif isinstance(message, c.Ask):
            node.questions.on_ask(identity, message, now)
        elif isinstance(message, c.LogsPlease | c.Read | c.Credit):
            # Many programs may read with one key: each connection has its own places.
            owner = Owner(request.user.decode() or request.host, identity)
            node.service.on_message(Asker(identity, request.user, owner, request.fd), message)
        elif client is None:
            node.post(identity, c.Unknown())
        else:
            self._on_client(identity, client, message, now)

    def _on_client(self, identity: bytes, client: Client, message: c.Message, now: float) -> None:
        """A request of somebody who has said who it is."""
        node, publisher = self._node, self._node.publisher
        if isinstance(message, c.Ping):
            self._on_ping(identity, client, message.number)
        elif isinstance(message, c.Subscribe):
            publisher.subscribers.on_subscribe(identity, client.peer, client.instance, message, now)
        elif isinstance(message, c.Commit):
            publisher.subscribers.on_commit(identity, message)
        elif isinstance(message, c.Nack):
            publisher.subscribers.on_nack(identity, message)
        elif isinstance(message, c.Status):
            publisher.subscribers.on_status(identity, message, now)
        elif isinstance(message, c.Settle):
            publisher.on_settle(identity, message, now)
        elif isinstance(message, c.Join):
            publisher.on_join(identity, client.peer, message, now)
        elif isinstance(message, c.Here):
            if self._gate.apart and message.peer != client.peer:
                raise ProtocolError("a card with another name")
            node.finder.on_here(client.instance, client.host, message)
            if not client.greeted:  # those who do not say who they are need not be told
                client.greeted = True
                node.finder.greet(identity, client.instance)
        elif isinstance(message, c.Taken):
            node.namesakes.on_taken(message, client.host, now)
        elif isinstance(message, c.Answer):
            node.questions.on_answer(identity, message)
        elif isinstance(message, c.Bye):
            node.finder.on_bye(client.instance)
            self._forget(identity, now)
        else:
            raise ProtocolError(f"{type(message).__name__} is not a request")

    def _on_ping(self, identity: bytes, client: Client, number: int) -> None:
        node, tails = self._node, self._gate.tails
        recorded = [] if node.recorder is None else node.recorder.lender.tails()
        known = [(tail, False) for tail in tails(client.user, node.publisher.tails())]
        known += [(tail, True) for tail in tails(client.user, recorded)]
        instance = node.instance
        node.post_pages(identity, lambda some, _: c.Pong(number, instance, *_apart(some)), known)

    def _on_hello(self, request: Request, hello: c.Hello, now: float) -> None:
        node, identity = self._node, request.identity
        known = self.clients.get(identity)
        if known is not None and known.instance != hello.instance:
            raise ProtocolError("a connection is of one peer")
        reason = self._gate.why_not(request.user, hello.peer)
        if hello.mesh != node.config.mesh:
            reason = f"peer {hello.peer!r} of mesh {hello.mesh!r} meets mesh {node.config.mesh!r}"
        elif hello.instance == node.instance:
            reason = ITSELF
        elif not reason and self._gate.is_another(hello.instance, request.user):
            reason = f"the number of {hello.peer!r} is not one of its key"
        elif identity not in self.clients and len(self.clients) >= CLIENTS_MAX:
            reason = f"{CLIENTS_MAX} peers are connected already"
        if reason:
            node.counters["refused"] += 1
            level = logging.DEBUG if reason == ITSELF else logging.ERROR  # the other side is us
            where = request.host or "?"
            node.notes.write(level, "refused %s at %s: %s", hello.peer, where, reason, by=where)
            node.post(identity, c.Refused(reason))
            return
        client = self.clients[identity] = Client(hello, request.host, request.user, now)
        self._welcome(identity, client)
        node.links.on_hello(hello, request.host)

    def _welcome(self, identity: bytes, client: Client) -> None:
        node, gate = self._node, self._gate
        recorded = [] if node.recorder is None else node.recorder.lender.infos()
        known = [(info, False) for info in gate.may_see(client.user, node.publisher.infos())]
        known += [(info, True) for info in gate.may_see(client.user, recorded)]
        welcome = c.Welcome(
            peer=node.config.name,
            instance=node.instance,
            mesh=node.config.mesh,
            streams=[],
            fanout=list(node._fanout.addresses),
            software=node.software,
        )
        signed = gate.sign(client.user, client.nonce, welcome)

        def make(some: list[tuple[c.StreamInfo, bool]], page: c.Page) -> c.Welcome:
            own, lent = _apart(some)
            more = not page.is_last
            return replace(signed, streams=own, recorded=lent, page=page.number, more=more)

        node.post_pages(identity, make, known)

    def announce(self) -> None:
        """Our streams have changed: tell everyone."""
        for identity, client in self.clients.items():
            self._welcome(identity, client)

    def user_of(self, identity: bytes) -> bytes:
        """Who somebody is that dialled us."""
        client = self.clients.get(identity)
        return b"" if client is None else client.user

    def owner_of(self, identity: bytes) -> Owner:
        """Whose places somebody takes that dialled us."""
        client = self.clients.get(identity)
        return self._gate.owner(self.user_of(identity), client.host if client else "", identity)

    def leave(self) -> None:
        """Tell everyone that we leave."""
        tails = self._node.publisher.tails()
        for identity, client in self.clients.items():
            known = self._gate.tails(client.user, tails)
            self._node.post_pages(identity, lambda some, _: c.Bye(self._node.instance, some), known)

    def await_byes(self, deadline: float) -> None:
        """Read until all have answered our good-bye, or for so long.

        A connection that is closed with words unread on it is reset, and what was on its way to
        the other side is gone: where our streams end, which nobody else can tell.
        """
        left = set(self.clients)
        while left and (wait_s := deadline - time.monotonic()) > 0:
            request = self._node._server.recv()
            if request is None:
                self._node._server.wait(wait_s)
                continue
            try:
                if isinstance(c.decode_message(request.parts[0]), c.Bye):
                    left.discard(request.identity)
            except (ProtocolError, IndexError):
                continue

    def _forget(self, identity: bytes, now: float, *, silent: bool = False) -> None:
        client = self.clients.pop(identity)
        self._shares.forget(identity)
        self._node.links.forget_back(client.instance)
        if silent:
            self._node.publisher.lose_link(identity, client.last_seen, now)
        else:
            self._node.publisher.forget_link(identity, now)
        if self._node.recorder is not None:
            self._node.recorder.lender.forget(identity)

    def forget_silent(self, now: float) -> None:
        """Those who gave no sign of life for too long are gone."""
        node = self._node
        limit = now - node.tuning.peer_timeout_s
        for identity, client in list(self.clients.items()):
            if client.last_seen < limit:
                log.info("%s has been silent for %g s", client.peer, node.tuning.peer_timeout_s)
                self._forget(identity, now, silent=True)
        seen = {identity: client.last_seen for identity, client in self.clients.items()}
        node.publisher.groups.forget_silent(seen, now)

    def forget_users(self, users: set[bytes], now: float) -> None:
        """These may not stay, or have to come in anew."""
        for identity, client in list(self.clients.items()):
            if client.user in users:
                log.warning("%s is cut off", client.peer)
                self._forget(identity, now)


def _apart(known: list[tuple[T, bool]]) -> tuple[list[T], list[T]]:
    """Return what is said of streams of our own, and of those that are recorded here."""
    own = [one for one, is_lent in known if not is_lent]
    return own, [one for one, is_lent in known if is_lent]
