"""The gate of a peer: who gets in, who is cut off, and what those inside may ask for.

Runs on the I/O thread.  Without a `Security` everyone may do all, and only the number of silent
connections is looked after.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from meshmsg._access.allow_list import Grant, covered
from meshmsg._access.keyring import ALL, NONCE_BYTES, Keyring, logs_transcript
from meshmsg._access.known_streams import Declared
from meshmsg._model.errors import ConfigError
from meshmsg._runtime import busy
from meshmsg._wire import control as c
from meshmsg.recovery.stream.quotas import Owner
from meshmsg.transports.zmq.connection_monitor import Door, connections_allowed, cut, cut_all
from meshmsg.transports.zmq.curve import CONTROL, DATA
from meshmsg.transports.zmq.unread_limit import limits_of
from meshmsg.transports.zmq.zap import ZapRequest, ZapServer

if TYPE_CHECKING:
    from meshmsg._links.outbound_peer import Link
    from meshmsg._peer.node import Node
    from meshmsg._replay.log_server import LogEntry

log = logging.getLogger("meshmsg.peer")

ZAP_PER_TURN_MAX = 256
#: How often the allow-list is looked at; a change counts once it was seen twice.
LOOK_S = 0.3
#: Refusals that are remembered, so that each is logged once.
TOLD_MAX = 1000
#: Who says what no subscriber says has no data connection for this long.
STRAY_S = 60.0
TOKEN_BYTES = 12
TOKEN_START = c.subscription_token(0)[:4]
STREAM_BYTES = 8
#: What is said once when connections fail for a reason that somebody can mend.
EXPLAINED = {
    "wrong_mesh_keys": "somebody dials us with another mesh key: `meshmsg keys show` compares them",
    "missing_keys": "somebody dials us with a key and we have none, or the other way round",
}
#: What all connections to one port may be ahead together.
AHEAD_BYTES_MAX = 64 * 1024 * 1024
CONTROL_LIMITS = limits_of(c.CONTROL_BYTES_MAX, 24 * 1024 * 1024)
DATA_LIMITS = limits_of(1024 * 1024, 1024 * 1024)
#: Owners of places that `stats()` shows: those who have most.
OWNERS_SHOWN = 10
#: Counters of the data socket.
NOTED_AT_DATA = ("not_permitted", "bad_upstream", "out_of_step", "bad_prefixes", "prefixes_full")
#: Nobody: of no name, with nothing that it may do.
NONE = Grant("", b"", (), (), False)


class Gate:
    """Judges connections and requests for one node."""

    def __init__(self, node: Node, keyring: Keyring | None) -> None:
        self._node = node
        self.keyring = keyring
        self.apart = keyring is not None and keyring.apart
        self._zap = None if keyring is None else ZapServer(node._context)
        self._doors: dict[str, Door] = {}
        self._told: set[tuple[str, ...]] = set()
        self._look_due = 0.0
        self._ahead_due = 0.0
        self._is_busy = False
        self._declared = Declared()
        self._strays: dict[bytes, float] = {}  # by user, until when
        self._limit = connections_allowed(node.tuning.connections_max)
        self.counters = node.counters

    def open(self) -> None:
        """Watch the bound sockets; raises `ConfigError` where everyone would refuse us."""
        node = self._node
        user = b"" if self.keyring is None else self.keyring.curve.own.public.hex().encode()
        if self.apart and self.keyring is not None and self.keyring.own_name():
            reason = self.why_not(user, node.config.name)
            if reason:
                raise ConfigError("security", f"{reason}, says our own allow-list: name it so")
            self._warn_of_streams(self.grant(user))
        control = Door(node._server.pollable, CONTROL_LIMITS)
        data = Door(node._fanout._socket, DATA_LIMITS)
        self._doors = {"control": control, "data": data}
        node._fanout.door = data
        data.gone = node.publisher.forget_connection
        control.gone = node.service.forget_connection
        node._fanout.strayed = self._on_stray
        for owner in self._pollables():
            node._poller.add(owner)
        busy.watch.add(self._on_busy)

    def _warn_of_streams(self, own: Grant) -> None:
        for stream in self._node.config.streams:
            if not own.may_publish(stream.topics):
                text = "%s: nobody will take it, our allow-list does not let us publish all of it"
                log.warning(text, stream.label)

    def _pollables(self) -> list[Any]:
        return [*self._doors.values(), *([] if self._zap is None else [self._zap])]

    def close(self) -> None:
        """Nobody gets in any more."""
        busy.watch.remove(self._on_busy)
        for door in self._doors.values():
            door.close()
        if self._zap is not None:
            self._zap.close()

    # --- connections ---

    def on_readable(self, owner: Any) -> bool:
        """Somebody is at a door; `False` if it is something else that is readable."""
        if owner is self._zap:
            self._judge()
        elif isinstance(owner, Door):
            owner.read()
            self._explain(owner)
            self._thin_out(owner)
        else:
            return False
        return True

    def _explain(self, door: Door) -> None:
        """Say what to do about handshakes that fail, once for each reason."""
        for kind, what in EXPLAINED.items():
            if door.counters[kind]:
                self._tell_once("%s (counted as %s)", what, kind)

    def spoke(self, fd: int, size: int) -> None:
        """A control connection has said something of so many bytes."""
        door = self._doors["control"]
        if fd not in door.open:
            door.read()  # it came just now
        door.spoke(fd, size)

    def all_read(self) -> None:
        """There is nothing more to read on the control socket."""
        self._doors["control"].emptied += 1

    def _judge(self) -> None:
        assert self._zap is not None
        assert self.keyring is not None
        for _ in range(ZAP_PER_TURN_MAX):
            request = self._zap.recv()
            if request is None:
                return
            user = self.keyring.user(request.domain, request.key)
            if user is not None and not self._is_stray(request, user):
                self._zap.accept(request, user)
            else:
                self._turn_away(request)

    def _on_stray(self, user: bytes) -> None:
        """It harms the subscriptions of others (see `FanoutServer.drain`): it stays out a while."""
        self._strays[user] = time.monotonic() + STRAY_S
        name = self.grant(user).name or "somebody"
        self._tell_once("%s says nonsense where subscriptions are made, and is cut off", name)

    def _is_stray(self, request: ZapRequest, user: bytes) -> bool:
        return request.domain == DATA and self._strays.get(user, 0.0) > time.monotonic()

    def _turn_away(self, request: ZapRequest) -> None:
        assert self._zap is not None
        self.counters["refused_keys"] += 1
        if request.domain == CONTROL:
            self._zap.refuse(request)
            self._tell_once(
                "refused a peer at %s: its public key %s is not allowed here",
                request.host or "?",
                request.key.hex(),
                by=request.host,
            )
        else:  # ZeroMQ gives up what is refused, and the list may change
            self._zap.put_off(request)

    def _tell_once(self, text: str, *values: str, by: str | None = None) -> None:
        if (text, *values) not in self._told:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            if self._node.notes.warning(text, *values, by=by):
                self._told.add((text, *values))

    def _thin_out(self, door: Door) -> None:
        """Cut connections beyond the limit."""
        chosen = door.superfluous(self._limit)
        if not chosen:
            return
        for fd in chosen:
            door.forget(fd)
        self.counters["connections_cut"] += cut(chosen, self._addresses())
        text = (
            "more than %s connections (connections_max, or 3/8 of `ulimit -n`): silent ones are cut"
        )
        self._tell_once(text, str(self._limit))

    def _addresses(self) -> list[str]:
        node = self._node
        return [*node.addresses, *(data for _, data in node._fanout.addresses)]

    def _look_at_connections(self, now: float) -> float:
        """Cut those that send and never finish a message; returns when to come again.

        To take much in costs time of the processor: while this process uses none, nobody can
        have sent much, and nothing is looked at.
        """
        if not self._is_busy:
            return float("inf")
        if now < self._ahead_due:
            return self._ahead_due
        self._is_busy = False
        count = 0
        for door in self._doors.values():
            over = door.look(AHEAD_BYTES_MAX)
            count += cut(over, self._addresses())
            for fd in over:
                door.forget(fd)
        count += self._node.look()
        if count:
            self.counters["connections_ahead"] += count
            text = "connections that never finish what they send are cut (counted as %s)"
            self._tell_once(text, "connections_ahead")
        # With very many connections: not more than a twentieth of the time.
        self._ahead_due = now + 20 * (time.monotonic() - now)
        return float("inf")

    def cut_greedy(self, fd: int) -> None:
        """End a connection that asks for more than its part of our time."""
        self.counters["connections_greedy"] += cut([fd], self._addresses())
        text = "a connection that asks for more than its part of our time is cut (counted as %s)"
        self._tell_once(text, "connections_greedy")

    def _on_busy(self) -> None:
        """This process uses a processor; any thread."""
        self._is_busy = True
        self._node.wake()

    # --- the allow-list ---

    def on_tick(self, now: float) -> float:
        """Look at the connections, and whether the allow-list has changed; when to come again."""
        return min(self._look_at_connections(now), self._look_at_list(now))

    def _look_at_list(self, now: float) -> float:
        if not self.apart:
            return float("inf")
        if now >= self._look_due:
            self._look_due = now + LOOK_S
            assert self.keyring is not None
            changed = self.keyring.look()
            if changed:
                self._cut_off(changed, now)
        return self._look_due

    def _cut_off(self, changed: set[bytes], now: float) -> None:
        """Some may not do what they could: all come in anew, and those who may not stay out."""
        node = self._node
        users = {key.hex().encode() for key in changed}
        node.reception.forget_users(users, now)
        node.service.forget_users(users)
        node.links.cut_off(changed)
        # ZeroMQ cannot end one connection of many, nor tell which is whose: they all redial.
        self.counters["cut_off"] += len(changed)
        count = cut_all(self._addresses())
        log.warning("%d keys may do less than before: %d connections begin anew", len(users), count)
        node.publisher.renew_seals(now)

    # --- what may be asked ---

    def owner(self, user: bytes, host: str, link: bytes) -> Owner:
        """Whose places a connection takes: those of its key, else of its host and its own."""
        return Owner(user.decode()) if self.apart else Owner(host, link)

    def grant(self, user: bytes) -> Grant:
        """What a user may do."""
        if self.keyring is None:
            return ALL
        return self.keyring.grant(user) or NONE

    def why_not(self, user: bytes, peer: str) -> str:
        """Why somebody may not call itself so; empty if it may."""
        if self.keyring is None or self.keyring.may_be_named(user, peer):
            return ""
        name = self.grant(user).name or "nobody"
        return f"a peer that calls itself {peer!r} has the key of {name!r}"

    def is_another(self, instance: int, user: bytes) -> bool:
        """Whether the number of a peer belongs to another key."""
        return self.keyring is not None and not self.keyring.has_number(user, instance)

    def may_receive(self, user: bytes, stream: str) -> bool:
        """Whether a user may have all events of a stream of ours."""
        if not self.apart:
            return True
        topics = self._topics(stream)
        return topics is not None and self.grant(user).may_subscribe(topics)

    def _topics(self, stream: str) -> str | None:
        node = self._node
        topics = node.publisher.topics_of(stream)
        if topics is not None:
            return topics
        recorded = None if node.recorder is None else node.recorder.lender.log_of(stream)
        return None if recorded is None else recorded.topics

    def may_see(self, user: bytes, infos: list[c.StreamInfo]) -> list[c.StreamInfo]:
        """Of streams of ours, those that a user may have."""
        if not self.apart:
            return infos
        grant = self.grant(user)
        return [info for info in infos if grant.may_subscribe(info.topics)]

    def tails(self, user: bytes, tails: list[c.Tail]) -> list[c.Tail]:
        """The same of what they have."""
        return [t for t in tails if self.may_receive(user, t.stream)] if self.apart else tails

    def may_take(self, user: bytes, prefix: bytes) -> bool:
        """Whether a user may subscribe to a prefix of what our data socket sends."""
        mesh, wire_id = self._node.config.mesh, int.from_bytes(prefix[:STREAM_BYTES], "little")
        streams = [outlet.stream for outlet in self._node.publisher.outlets()]
        found = next((s for s in streams if c.stream_wire_id(mesh, s) == wire_id), None)
        if found is None:  # a subscription's own token; not a stream that is yet to be declared
            return len(prefix) == TOKEN_BYTES and prefix[:4] == TOKEN_START
        return len(prefix) == STREAM_BYTES and self.may_receive(user, found)

    def may_read(self, user: bytes, entry: LogEntry) -> bool:
        """Whether a user may read a log."""
        return not self.apart or self.grant(user).may_subscribe(entry.topics)

    def permitted(self, user: bytes, message: c.Message) -> c.Message | None:
        """What a user may ask for of what it asks; `None` for nothing of it."""
        if not self.apart:
            return message
        left: c.Message | None = message
        if isinstance(message, c.Subscribe | c.Join) and self._is_anothers(user, message.sub):
            left = None
        elif isinstance(message, c.Subscribe | c.Join):
            starts = [s for s in message.starts if self.may_receive(user, s.stream)]
            if not starts:
                left = None
            elif len(starts) < len(message.starts):
                left = replace(message, starts=starts)
        elif isinstance(message, c.Nack):
            left = message if self.may_receive(user, message.stream) else None
        elif isinstance(message, c.Commit):
            places = [p for p in message.places if self.may_receive(user, p.stream)]
            left = replace(message, places=places) if places else None
        elif isinstance(message, c.Ask):
            left = message if self.grant(user).stats or message.what == "clock" else None
        if left is not message:
            self.counters["not_permitted"] += 1
            name = self.grant(user).name or "nobody"
            self._tell_once("%s asked for what it may not have: %s", name, type(message).__name__)
        return left

    def _is_anothers(self, user: bytes, sub: int) -> bool:
        """Whether a subscription that is here belongs to another key, which alone may change it."""
        user_of = self._node.reception.user_of
        return any(user_of(link) != user for link in self._node.publisher.links_of(sub))

    # --- those whom we dial ---

    def nonce(self) -> bytes:
        """A question for the one we dial: prove who you are."""
        return secrets.token_bytes(NONCE_BYTES) if self.apart else b""

    def sign(self, user: bytes, nonce: bytes, welcome: c.Welcome) -> c.Welcome:
        """A welcome with the proof that it is ours."""
        if not self.apart or self.keyring is None or len(nonce) != NONCE_BYTES:
            return welcome
        proof = self.keyring.prove(user, nonce, _transcript(welcome))
        return replace(welcome, key=self.keyring.curve.own.public, proof=proof)

    def sign_logs(self, user: bytes, nonce: bytes, logs: c.Logs) -> c.Logs:
        """An answer about logs with the same proof."""
        if not self.apart or self.keyring is None or len(nonce) != NONCE_BYTES:
            return logs
        proof = self.keyring.prove(user, nonce, logs_transcript(logs))
        return replace(logs, key=self.keyring.curve.own.public, proof=proof)

    def identify(self, link: Link, welcome: c.Welcome) -> str:
        """Take down who answered; returns why it is not believed, empty if it is."""
        if not self.apart or self.keyring is None:
            return ""
        keyring = self.keyring
        if not keyring.is_proved(welcome.key, link.nonce, _transcript(welcome), welcome.proof):
            return f"peer {welcome.peer!r} did not prove its key: has it one of its own?"
        user = welcome.key.hex().encode()
        if keyring.grant(user) is None:
            return f"our allow-list does not name the public key {welcome.key.hex()}"
        reason = self.why_not(user, welcome.peer)
        if not reason and self.is_another(welcome.instance, user):
            reason = f"the number of {welcome.peer!r} is not one of its key"
        link.user = b"" if reason else user
        return reason

    def screen(self, link: Link, welcome: c.Welcome) -> c.Welcome:
        """A welcome without streams that its sender may not publish, or that are another's."""
        named = [info for info in welcome.streams if info.name.startswith(f"{welcome.peer}/")]
        if not self.apart:
            self.counters["not_permitted"] += len(welcome.streams) - len(named)
            return replace(welcome, streams=named)
        grant = self.grant(link.user)
        may = covered(grant.publish, (info.topics for info in named))
        own = [info for info in named if info.topics in may]
        if self._declared.learn(own):
            self._screen_recorders(link)
        recorded = self._declared.may_lend(grant, welcome.recorded)
        hidden = len(welcome.streams) - len(own) + len(welcome.recorded) - len(recorded)
        if hidden:
            self.counters["not_permitted"] += hidden
            self._tell_once("%s has streams that it may not publish", welcome.peer)
        return replace(welcome, streams=own, recorded=recorded)

    def _screen_recorders(self, publisher: Link) -> None:
        """A publisher says what its streams are: not all who recorded them may lend them."""
        for link in self._node.links.up():
            if link is not publisher and link.recorded:
                grant, before = self.grant(link.user), link.recorded
                may = self._declared.may_lend(grant, before.values())
                link.recorded = {info.name: info for info in may}
                self.counters["not_permitted"] += len(before) - len(link.recorded)

    def is_believed(self, link: Link, message: c.Message) -> bool:
        """Whether one that we dialled may say this: about its own streams, once it is known."""
        if isinstance(message, c.Welcome | c.Refused | c.Unknown):
            return True
        good = bool(link.user) or not self.apart
        if isinstance(message, c.Unsubscribed):
            streams, recorded = link.streams, link.recorded
            good = good and all(n in streams or n in recorded for n in message.streams)
        elif isinstance(message, c.Subscribed | c.Repair | c.Gone | c.Evicted):
            lent = message.stream in link.recorded
            if isinstance(message, c.Subscribed):
                lent = lent and message.recorded  # how a stream is sent, its publisher says
            good = good and (lent or message.stream in link.streams)
        elif isinstance(message, c.Rekey | c.Kept):
            good = good and message.stream in link.streams
        elif isinstance(message, c.Joined):
            good = good and all(tail.stream in link.streams for tail in message.streams)
        elif isinstance(message, c.Here):
            good = good and message.peer == link.peer
        elif isinstance(message, c.Bye):
            good = good and message.instance == link.instance
        self.counters["strange_answers"] += not good
        return good

    def told(self, link: Link, message: c.Pong | c.Bye) -> c.Pong | c.Bye:
        """What it says about how far streams are, as far as it can know."""
        tails = [tail for tail in message.tails if tail.stream in link.streams]
        if isinstance(message, c.Bye):
            return replace(message, tails=tails)
        recorded = [tail for tail in message.recorded if tail.stream in link.recorded]
        return replace(message, tails=tails, recorded=recorded)

    def stats(self) -> dict[str, Any]:
        """Figures of the doors."""
        return {
            "mode": "none" if self.keyring is None else "allow-list" if self.apart else "mesh key",
            "keys": 0 if self.keyring is None else len(self.keyring.grants),
            "connections_max": self._limit,
            **{name: len(door.open) for name, door in self._doors.items()},
            "silent": sum(len(door.silent) for door in self._doors.values()),
        }

    def quotas(self) -> dict[str, Any]:
        """Who has how many of the places that those who dial us share."""
        node = self._node
        quotas = {
            "subscriptions": node.publisher.subscribers.quota,
            "members": node.publisher.groups.quota,
            "prefixes": node._fanout.prefixes,
            "reads": node.service.quota,
        }
        if node.recorder is not None:
            quotas["recorded streams"] = node.recorder.lender.quota
        return {
            name: {
                "used": quota.used,
                "max": quota.total,
                "each_max": quota.each,
                "owners": {self._label(o): n for o, n in quota.most(OWNERS_SHOWN)},
            }
            for name, quota in quotas.items()
        }

    def _label(self, owner: Owner) -> str:
        client = self._node.reception.clients.get(owner.link)
        if client is not None:
            return client.peer
        name = self.grant(owner.host.encode()).name if self.apart else owner.host
        return f"{name or 'ipc'}{'#' if owner.link else ''}{owner.link.hex()}"

    def tallies(self) -> Counter[str]:
        """Counters of the doors."""
        total: Counter[str] = Counter()
        for door in self._doors.values():
            total += door.counters
        seen = self._node._fanout.counters
        for name in NOTED_AT_DATA:
            total[name] += seen[name]
        return +total


def _transcript(welcome: c.Welcome) -> bytes:
    return f"{welcome.mesh}\n{welcome.peer}\n{welcome.instance}".encode()
