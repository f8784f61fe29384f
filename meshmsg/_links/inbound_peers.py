"""Those who dial this peer: their requests, on the I/O thread.

Whatever they ask is first put to the gate (`_access.access_control`), which knows who they are and
what they may.
"""

from __future__ import annotations

import logging
from typing import Protocol, TypeVar

from msgspec.structs import replace

from meshmsg import _platform
from meshmsg._access.access_control import Gate
from meshmsg._access.connections import Connections
from meshmsg._links.discovery_service import ITSELF, Finder
from meshmsg._links.inbound_peer import Client
from meshmsg._links.name_conflicts import Namesakes
from meshmsg._links.outbound_peers import Links
from meshmsg._links.peer_queries import Questions
from meshmsg._model.config import PeerConfig
from meshmsg._model.errors import MeshError, ProtocolError
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._runtime.guard import Guard
from meshmsg._runtime.turns import MESSAGES_A_TURN, Slice
from meshmsg._wire import control as c
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.recovery.stream.time_shares import TimeShares
from meshmsg.transports.zmq.control import ControlServer, Request

log = logging.getLogger("meshmsg.peer")

T = TypeVar("T")

CLIENTS_MAX = 10_000
#: How long what a connection that was cut has said may take to be read.
CUT_S = 10.0


class Note(Protocol):
    """Writes into the audit stream."""

    def __call__(self, what: str, **fields: object) -> None: ...


class Streams(Protocol):
    """What can be had of this peer: its own streams, and those that are recorded here."""

    def infos(self) -> tuple[list[c.StreamInfo], list[c.StreamInfo]]:
        """Both kinds, as they are announced."""

    def tails(self) -> tuple[list[c.Tail], list[c.Tail]]:
        """How far they are."""

    def serve(
        self, request: Request, client: Client | None, message: c.Message, now: float
    ) -> bool:
        """See to a request; `False` for one that has nothing to do with streams."""

    def refuse(self, identity: bytes, message: c.Message) -> None:
        """Say that something is not permitted."""

    def forget(self, identity: bytes, now: float, last_seen: float | None = None) -> None:
        """Somebody has gone; with `last_seen`, it may come back."""

    def forget_silent(self, seen: dict[bytes, float], now: float) -> None:
        """These are here, and gave a sign of life then."""


class Reception:
    """Reads the control socket that others dial."""

    def __init__(
        self,
        config: PeerConfig,
        instance: int,
        software: str,
        control: ControlSender,
        guard: Guard,
        server: ControlServer,
        data_addresses: list[tuple[str, str]],
        clients: dict[bytes, Client],
        gate: Gate,
        connections: Connections,
        questions: Questions,
        finder: Finder,
        links: Links,
        namesakes: Namesakes,
        streams: Streams,
        note: Note,
    ) -> None:
        self.clients = clients
        self._config = config
        self._instance = instance
        self._software = software
        self._control = control
        self._guard = guard
        self._server = server
        self._data_addresses = data_addresses
        self._gate = gate
        self._connections = connections
        self._questions = questions
        self._finder = finder
        self._links = links
        self._namesakes = namesakes
        self._streams = streams
        self._note = note
        self._shares: TimeShares[Owner, Request] = TimeShares()
        #: When connections were cut: what they had said before is not heeded any more.
        self._cut: dict[bytes, float] = {}

    def on_readable(self) -> None:
        """Requests have come: heed them, or let them wait if their sender has no time left."""
        part, began = Slice(), _platform.thread_time()
        for _ in range(MESSAGES_A_TURN):
            request = self._server.recv()
            if request is None:
                self._connections.all_read()
                return
            self._connections.spoke(request.fd, request.size)
            now = _platform.monotonic()
            client = self.clients.get(request.identity)
            if client is not None and client.user != request.user:
                self._forget(request.identity, now)  # somebody took over its routing id
                client = None
            if client is not None:
                client.last_seen = now
            owner = self._owner(request, client)
            if request.identity in self._cut:
                self._control.counters["requests_dropped"] += 1
            elif self._shares.must_wait(request.identity, owner, now=now):
                self._let_wait(request, owner, now)
            else:
                began = self._heed(request, client, owner, began, now)
            if part.is_over():
                return

    def on_tick(self, now: float) -> float:
        """Heed those who have waited for their time; returns when to come again."""
        part, began = Slice(), _platform.thread_time()
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
            self._control.counters["bad_control"] += 1
            where = request.host or "?"
            log.debug("a bad control message from %s was dropped: %s", where, error)
        except Exception:
            self._guard.failed("a control message")
        ended = _platform.thread_time()
        self._shares.spend(owner, ended - began, now=now)
        return ended

    def _let_wait(self, request: Request, owner: Owner, now: float) -> None:
        self._control.counters["requests_delayed"] += 1
        last = self._shares.put(request.identity, owner, request, request.size)
        if last is not None:
            self._cut[last.identity] = now
            if last.identity in self.clients:
                self._forget(last.identity, now, silent=True)
            self._connections.cut_greedy(last.fd)

    def _on_request(self, request: Request, client: Client | None, now: float) -> None:
        identity, parts = request.identity, request.parts
        if len(parts) != 1:
            raise ProtocolError(f"a request of {len(parts)} parts")
        version = c.message_version(parts[0])
        if version != c.PROTOCOL_VERSION:
            reason = c.version_mismatch(version)
            self._control.counters["refused"] += 1
            where = request.host or "?"
            self._guard.notes.error("refused a peer at %s: %s", where, reason, by=where)
            self._control.send(identity, [c.encode_refusal(reason, version)])
            return
        said = c.decode_message(parts[0], self._questions.kinds_awaited(identity))
        message = self._gate.permitted(request.user, said)
        if message is None:
            self._streams.refuse(identity, said)
        elif isinstance(message, c.Hello):
            self._on_hello(request, message, now)
        elif isinstance(message, c.Ask):
            self._questions.on_ask(identity, message, now)
        elif self._streams.serve(request, client, message, now):
            pass
        elif client is None:
            self._control.post(identity, c.Unknown())
        else:
            self._on_client(identity, client, message, now)

    def _on_client(self, identity: bytes, client: Client, message: c.Message, now: float) -> None:
        """A request of somebody who has said who it is."""
        if isinstance(message, c.Ping):
            self._on_ping(identity, client, message.number)
        elif isinstance(message, c.Here):
            if self._gate.apart and message.peer != client.peer:
                raise ProtocolError("a card with another name")
            self._finder.on_here(client.instance, client.host, message)
            if not client.greeted:  # those who do not say who they are need not be told
                client.greeted = True
                self._finder.greet(identity, client.instance)
        elif isinstance(message, c.Taken):
            self._namesakes.on_taken(message, client.host, now)
        elif isinstance(message, c.Answer):
            self._questions.on_answer(identity, message)
        elif isinstance(message, c.Bye):
            self._finder.on_bye(client.instance)
            self._forget(identity, now)
        else:
            raise ProtocolError(f"{type(message).__name__} is not a request")

    def _on_ping(self, identity: bytes, client: Client, number: int) -> None:
        own, recorded = (self._gate.tails(client.user, tails) for tails in self._streams.tails())
        known = [(tail, False) for tail in own] + [(tail, True) for tail in recorded]
        instance = self._instance
        make = lambda some, _: c.Pong(number, instance, *_apart(some))  # noqa: E731
        self._control.post_pages(identity, make, known)

    def _on_hello(self, request: Request, hello: c.Hello, now: float) -> None:
        identity, mesh = request.identity, self._config.mesh
        known = self.clients.get(identity)
        if known is not None and known.instance != hello.instance:
            raise ProtocolError("a connection is of one peer")
        reason = self._gate.why_not(request.user, hello.peer)
        if hello.mesh != mesh:
            reason = f"peer {hello.peer!r} of mesh {hello.mesh!r} meets mesh {mesh!r}"
        elif hello.instance == self._instance:
            reason = ITSELF
        elif not reason and self._gate.is_another(hello.instance, request.user):
            reason = f"the number of {hello.peer!r} is not one of its key"
        elif identity not in self.clients and len(self.clients) >= CLIENTS_MAX:
            reason = f"{CLIENTS_MAX} peers are connected already"
        if reason:
            self._control.counters["refused"] += 1
            level = logging.DEBUG if reason == ITSELF else logging.ERROR  # the other side is us
            where = request.host or "?"
            text = "refused %s at %s: %s"
            self._guard.notes.write(level, text, hello.peer, where, reason, by=where)
            self._control.post(identity, c.Refused(reason))
            if reason != ITSELF:
                self._note("refused", peer=hello.peer, host=request.host, reason=reason)
            return
        client = self.clients[identity] = Client(hello, request.host, request.user, now)
        if known is None:
            self._note("connected", peer=hello.peer, host=request.host, software=hello.software)
        self._welcome(identity, client)
        self._links.on_hello(hello, request.host)

    def _welcome(self, identity: bytes, client: Client) -> None:
        gate = self._gate
        own, recorded = (gate.may_see(client.user, infos) for infos in self._streams.infos())
        known = [(info, False) for info in own] + [(info, True) for info in recorded]
        welcome = c.Welcome(
            peer=self._config.name,
            instance=self._instance,
            mesh=self._config.mesh,
            streams=[],
            fanout=list(self._data_addresses),
            software=self._software,
        )
        signed = gate.sign(client.user, client.nonce, welcome)

        def make(some: list[tuple[c.StreamInfo, bool]], page: c.Page) -> c.Welcome:
            own, lent = _apart(some)
            more = not page.is_last
            return replace(signed, streams=own, recorded=lent, page=page.number, more=more)

        self._control.post_pages(identity, make, known)

    def announce(self) -> None:
        """Our streams have changed: tell everyone."""
        for identity, client in self.clients.items():
            self._welcome(identity, client)

    def leave(self) -> None:
        """Tell everyone that we leave."""
        tails, _ = self._streams.tails()
        for identity, client in self.clients.items():
            known = self._gate.tails(client.user, tails)
            self._control.post_pages(identity, lambda some, _: c.Bye(self._instance, some), known)

    def await_byes(self, deadline: float) -> None:
        """Read until all have answered our good-bye, or for so long.

        A connection that is closed with words unread on it is reset, and what was on its way to
        the other side is gone: where our streams end, which nobody else can tell.
        """
        left = set(self.clients)
        while left and (wait_s := deadline - _platform.monotonic()) > 0:
            request = self._server.recv()
            if request is None:
                self._server.wait(wait_s)
                continue
            try:
                if isinstance(c.decode_message(request.parts[0]), c.Bye):
                    left.discard(request.identity)
            except (ProtocolError, IndexError):
                continue

    def _forget(self, identity: bytes, now: float, *, silent: bool = False) -> None:
        client = self.clients.pop(identity)
        self._note("silent" if silent else "left", peer=client.peer, host=client.host)
        self._shares.forget(identity)
        self._links.forget_back(client.instance)
        self._streams.forget(identity, now, client.last_seen if silent else None)

    def forget_silent(self, now: float) -> None:
        """Those who gave no sign of life for too long are gone."""
        timeout_s = self._config.tuning.peer_timeout_s
        limit = now - timeout_s
        for identity, client in list(self.clients.items()):
            if client.last_seen < limit:
                text = "%s has been silent for %g s"
                self._guard.notes.info(text, client.peer, timeout_s, by=client.host)
                self._forget(identity, now, silent=True)
        seen = {identity: client.last_seen for identity, client in self.clients.items()}
        self._streams.forget_silent(seen, now)

    def forget_users(self, users: set[bytes], now: float) -> None:
        """These may not stay, or have to come in anew."""
        for identity, client in list(self.clients.items()):
            if client.user in users:
                log.warning("%s is cut off", client.peer)
                self._note(
                    "cut_off", peer=client.peer, host=client.host, reason="its rights changed"
                )
                self._forget(identity, now)

    def put_out(self, peer: str, reason: str, now: float, dry_run: bool) -> list[dict[str, object]]:
        """Cut off a peer by its name, and tell it not to come again."""
        rows: list[dict[str, object]] = []
        for identity, client in list(self.clients.items()):
            if client.peer == peer:
                rows.append({"peer": client.peer, "host": client.host})
                if not dry_run:
                    self._control.counters["peers_evicted"] += 1
                    self._note("cut_off", peer=client.peer, host=client.host, reason=reason)
                    self._control.post(identity, c.Refused(reason))
                    self._forget(identity, now)
        return rows


def _apart(known: list[tuple[T, bool]]) -> tuple[list[T], list[T]]:
    """Return what is said of streams of our own, and of those that are recorded here."""
    own = [one for one, is_lent in known if not is_lent]
    return own, [one for one, is_lent in known if is_lent]
