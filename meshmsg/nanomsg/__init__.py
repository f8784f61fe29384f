"""nanomsg and NNG at the edge of the mesh: their messages as events, and events as messages.

>>> from meshmsg import Peer
>>> from meshmsg.nanomsg import NanomsgIn, NanomsgOut
>>> with Peer("bridge") as peer:                                               # doctest: +SKIP
...     with NanomsgIn(peer, "tcp://127.0.0.1:5555", kind="sub", topic="nng.{topic}"):
...         ...

Needs `pip install 'meshmsg[nanomsg]'`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshmsg._bridge.lifecycle import Edge
from meshmsg._bridge.plaintext import check_plain_url
from meshmsg._bridge.publishing import publish_patiently
from meshmsg._model.batch import Event
from meshmsg._model.errors import ClosedError, ConfigError, LogError, MeshError, PayloadError
from meshmsg._model.event import Loss
from meshmsg._model.extras import need
from meshmsg._model.units import one_of, parse_size, several
from meshmsg._peer.peer import Peer
from meshmsg.nanomsg import messages

if TYPE_CHECKING:
    from meshmsg.nanomsg.sp_socket import SpSocket

__all__ = ["NanomsgIn", "NanomsgOut"]

log = logging.getLogger("meshmsg.nanomsg")

LOOK_S = 0.1
BURST = 500
LAST_BURSTS = 10
COMMIT_EVERY_S = 1.0
AFTER_FAILURE_S = 1.0


class _Bridge(Edge):
    """A socket and a thread."""

    counters_shown: tuple[str, ...] = ()

    def __init__(self, peer: Peer, url: str, kind: str, listen: bool) -> None:
        super().__init__()
        need("pynng", "nanomsg", "nanomsg")
        check_plain_url(peer, "nanomsg", url)
        self._peer = peer
        self._url = url
        self._kind = kind
        self._listen = listen
        self._socket: SpSocket | None = None
        self.counters: Counter[str] = Counter()

    def _open(self) -> SpSocket:
        raise NotImplementedError

    def _serve(self, socket: SpSocket) -> None:
        raise NotImplementedError

    def _start(self) -> None:
        self._check_unopened()
        socket = self._socket = self._open()
        self._begin(lambda: self._run(socket), f"nng-{self._kind}")

    def _run(self, socket: SpSocket) -> None:
        while not self._stopping.is_set():
            try:
                self._serve(socket)
            except ClosedError:
                if not self._stopping.is_set():
                    log.warning("the peer was closed before its bridge to %s", self._url)
                return
            except MeshError as error:
                log.error("the bridge to %s: %s", self._url, error)
                self.counters["failures"] += 1
                self._stopping.wait(AFTER_FAILURE_S)
            except Exception:  # a defect: it must not end the bridge
                log.exception("the bridge to %s", self._url)
                self.counters["io_errors"] += 1
                self._stopping.wait(AFTER_FAILURE_S)

    @property
    def url(self) -> str:
        """The socket's address; where it listens, with the port that it got."""
        if self._socket is None:
            raise ClosedError("the bridge is not open: use a with block")
        return self._socket.url

    @property
    def connections(self) -> int:
        """How many sockets it is connected to."""
        return 0 if self._socket is None else self._socket.peers

    def stats(self) -> dict[str, int]:
        """Counters since the start."""
        return {name: self.counters[name] for name in self.counters_shown}

    def close(self) -> None:
        """Stop.  Safe to call again."""
        super().close()
        if self._socket is not None:
            self._socket.close()


class NanomsgIn(_Bridge):
    """Publishes what a `sub` or `pull` socket receives.

    In `topic`, `{topic}` stands for what is before the separator in a message.  `prefixes` are what
    a `sub` socket subscribes to, `json` decodes payloads that are JSON.  Raises `ConfigError`,
    `BindError`.
    """

    counters_shown = ("received", "published", "malformed", "unpublished", "failures", "io_errors")

    def __init__(
        self,
        peer: Peer,
        url: str,
        *,
        kind: str = "sub",
        listen: bool = False,
        topic: str = "nng.{topic}",
        separator: str = "|",
        prefixes: str | Sequence[str] = ("",),
        json: bool = False,
        message_bytes_max: int | str = "1MiB",
    ) -> None:
        super().__init__(peer, url, one_of("kind", kind, messages.KINDS_IN), listen)
        self._separator = messages.check_separator(separator)
        self._template = messages.check_template(topic, self._separator)
        self._prefixes = several("prefixes", prefixes, str, "a text or a list of them")
        self._json = json
        self._bytes_max = parse_size("message_bytes_max", message_bytes_max)

    def __enter__(self) -> NanomsgIn:
        """Receive from here on."""
        self._start()
        return self

    def _open(self) -> SpSocket:
        from meshmsg.nanomsg.sp_socket import SpSocket

        return SpSocket(
            self._kind,
            self._url,
            listen=self._listen,
            prefixes=[prefix.encode() for prefix in self._prefixes],
            message_bytes_max=self._bytes_max,
        )

    def _serve(self, socket: SpSocket) -> None:
        while not self._stopping.is_set():
            self._take(socket.receive(BURST, LOOK_S))
        for _ in range(LAST_BURSTS):  # what the socket has already, which would be gone with it
            found = socket.receive(BURST, 0.0)
            if not found:
                return
            self._take(found)

    def _take(self, found: list[bytes]) -> None:
        self.counters["received"] += len(found)
        for number, message in enumerate(found):
            try:
                self._take_one(message)
            except BaseException:  # this one, and those that it keeps from being published
                self.counters["unpublished"] += len(found) - number
                raise

    def _take_one(self, message: bytes) -> None:
        part = messages.take_apart(message, self._separator, self._template)
        if part is None:
            self.counters["malformed"] += 1
            return
        topic, payload = part
        try:
            self._publish(topic, messages.data_from(payload, self._json))
        except PayloadError:  # JSON that no payload can be, such as numbers of 30 digits
            self._publish(topic, payload)

    def _publish(self, topic: str, data: Any) -> None:
        """What a full disk refuses is tried again; what no stream will ever take is counted."""
        while True:
            try:
                publish_patiently(self._peer, self._stopping, topic, data)
            except (ClosedError, PayloadError):
                raise
            except LogError as error:
                log.error("the bridge to %s waits: %s", self._url, error)
                self.counters["failures"] += 1
                if not self._stopping.wait(AFTER_FAILURE_S):
                    continue
                self.counters["unpublished"] += 1
            except MeshError as error:
                if not self.counters["unpublished"]:
                    log.error("a message cannot be published: %s", error)
                self.counters["unpublished"] += 1
            else:
                self.counters["published"] += 1
            return


class NanomsgOut(_Bridge):
    """Sends events through a `pub` or `push` socket.

    A message is topic, separator and payload; with `separator=""` the payload alone.  `format` is
    `data` (bytes as they are, text as UTF-8, everything else as JSON) or `event` (JSON with
    position, key and headers, by which a receiver finds what it missed).  With `name`, and a peer
    with a `data_dir`, a restart goes on behind the last event that was sent.  Raises `ConfigError`,
    `BindError`.
    """

    counters_shown = ("taken", "sent", "lost", "waits", "failures", "io_errors")

    def __init__(
        self,
        peer: Peer,
        url: str,
        topics: str | Sequence[str],
        *,
        kind: str = "pub",
        listen: bool = True,
        separator: str = "|",
        format: str = "data",
        name: str = "",
    ) -> None:
        super().__init__(peer, url, one_of("kind", kind, messages.KINDS_OUT), listen)
        self._topics = several("topics", topics, str, "a pattern or a list of patterns")
        self._separator = messages.check_separator(separator)
        self._format = one_of("format", format, messages.FORMATS)
        if name and peer.config.data_dir is None:
            problem = "needs a place for its cursor: Peer(..., data_dir='./data')"
            raise ConfigError("name", problem)
        self._name = name

    def __enter__(self) -> NanomsgOut:
        """Send from here on."""
        self._start()
        return self

    def _open(self) -> SpSocket:
        from meshmsg.nanomsg.sp_socket import SpSocket

        return SpSocket(self._kind, self._url, listen=self._listen)

    def _serve(self, socket: SpSocket) -> None:
        start = "committed" if self._name else "live"
        with self._peer.subscribe(
            *self._topics, start=start, name=self._name, on_loss=self._lost
        ) as events:
            committed = time.monotonic()
            sent = True
            while sent and not self._stopping.is_set():
                # One at a time where a cursor says how far it is: it names the last one given.
                event = events.get(timeout=LOOK_S)
                if event is not None:
                    self.counters["taken"] += 1
                    sent = self._send(socket, event)
                if not sent:
                    return  # told to stop: the event is not done, and the cursor stays before it
                if self._name and time.monotonic() - committed >= COMMIT_EVERY_S:
                    events.commit()
                    committed = time.monotonic()
            if self._name:
                events.commit()

    def _send(self, socket: SpSocket, event: Event) -> bool:
        message = messages.put_together(event.topic, self._payload(event), self._separator)
        while not socket.send(message, LOOK_S):
            self.counters["waits"] += 1
            if self._stopping.is_set():
                return False
        self.counters["sent"] += 1
        return True

    def _payload(self, event: Event) -> bytes:
        try:
            data = event.data
        except PayloadError:
            data = event.payload
        if self._format == "data":
            return messages.payload_from(data)
        shown: dict[str, Any] = {
            "topic": event.topic,
            "position": str(event.position),
            "time_ns": event.time_ns,
            "key": event.key,
            "headers": dict(event.headers),
        }
        return messages.event_json(shown, data)

    def _lost(self, loss: Loss) -> None:
        log.warning("%s", loss)
        self.counters["lost"] += loss.count
