"""The streams that others can have here, our own and recorded ones; and who serves a request."""

from __future__ import annotations

from collections.abc import Callable

from meshmsg._links.inbound_peer import Client
from meshmsg._publish.publisher import PublisherSide
from meshmsg._replay.log_server import Asker, LogEntry, ReplayService
from meshmsg._replay.recorder_service import Lender
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._wire import control as c
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.transports.zmq.control import Request

NOT_PERMITTED = "its key does not permit it"


class ServedStreams:
    """Leads requests of those who dialled us to the part that serves them; on the I/O thread."""

    def __init__(
        self,
        control: ControlSender,
        publisher: PublisherSide,
        lender: Lender | None,
        service: ReplayService,
        operate: Callable[[Request, Client, c.Operate, float], None],
    ) -> None:
        self._control = control
        self._publisher = publisher
        self._lender = lender
        self._service = service
        self._operate = operate

    def infos(self) -> tuple[list[c.StreamInfo], list[c.StreamInfo]]:
        """Our own streams and recorded ones, as they are announced."""
        return self._publisher.infos(), [] if self._lender is None else self._lender.infos()

    def tails(self) -> tuple[list[c.Tail], list[c.Tail]]:
        """How far they are."""
        return self._publisher.tails(), [] if self._lender is None else self._lender.tails()

    def serve(
        self, request: Request, client: Client | None, message: c.Message, now: float
    ) -> bool:
        """See to a request; `False` for one that has nothing to do with streams."""
        identity = request.identity
        if isinstance(message, c.LogsPlease | c.Read | c.Credit):
            # Many programs may read with one key: each connection has its own places.
            owner = Owner(request.user.decode() or request.host, identity)
            self._service.on_message(Asker(identity, request.user, owner, request.fd), message)
            return True
        if client is None:
            return False
        if isinstance(message, c.Operate):
            self._operate(request, client, message, now)
            return True
        left = message if self._lender is None else self._lender.on_request(identity, message)
        return left is None or self._publish(identity, client, left, now)

    def _publish(self, identity: bytes, client: Client, message: c.Message, now: float) -> bool:
        publisher = self._publisher
        if isinstance(message, c.Subscribe):
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
        else:
            return False
        return True

    def refuse(self, identity: bytes, message: c.Message) -> None:
        """Say that something is not permitted, where that is said."""
        if isinstance(message, c.Join):
            self._control.post(identity, c.Unjoined(message.sub, NOT_PERMITTED, refused=True))
        elif isinstance(message, c.Subscribe):
            self._publisher.subscribers.refuse(identity, message, NOT_PERMITTED, final=True)

    def forget(self, identity: bytes, now: float, last_seen: float | None = None) -> None:
        """Somebody has gone; with `last_seen`, it may come back."""
        if last_seen is None:
            self._publisher.forget_link(identity, now)
        else:
            self._publisher.lose_link(identity, last_seen, now)
        if self._lender is not None:
            self._lender.forget(identity)

    def forget_silent(self, seen: dict[bytes, float], now: float) -> None:
        """These are here, and gave a sign of life then."""
        self._publisher.groups.forget_silent(seen, now)

    def topics_of(self, stream: str) -> str | None:
        """The topics of a stream that can be had here."""
        topics = self._publisher.topics_of(stream)
        if topics is not None or self._lender is None:
            return topics
        recorded = self._lender.log_of(stream)
        return None if recorded is None else recorded.topics

    def logs(self) -> list[LogEntry]:
        """The logs that others may read here."""
        own = [
            LogEntry(o.stream, o.config.topics, o.codec.name, o.log.folder, o.epoch, o.log.next)
            for o in self._publisher.outlets()
            if o.log is not None
        ]
        return own if self._lender is None else own + self._lender.entries()
