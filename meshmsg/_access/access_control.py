"""The gate of a peer: what those may ask for who are connected, and who is cut off.

Runs on the I/O thread.  Without a `Security` everyone may do all.  Who gets in at all is decided in
`connections`.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from msgspec.structs import replace

from meshmsg._access.allow_list import Grant, covered
from meshmsg._access.keyring import ALL, NONCE_BYTES, Keyring, logs_transcript
from meshmsg._access.known_streams import Declared
from meshmsg._links.inbound_peer import Client
from meshmsg._links.outbound_peer import Link, LinkTable
from meshmsg._model.config import PeerConfig
from meshmsg._model.errors import ConfigError
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire import control as c
from meshmsg.recovery.stream.quotas import Owner, Quota

log = logging.getLogger("meshmsg.peer")

#: How often the allow-list is looked at; a change counts once it was seen twice.
LOOK_S = 0.3
#: Refusals that are remembered, so that each is logged once.
TOLD_MAX = 1000
TOKEN_BYTES = 12
TOKEN_START = c.subscription_token(0)[:4]
STREAM_BYTES = 8
#: Owners of places that `stats()` shows: those who have most.
OWNERS_SHOWN = 10
#: Nobody: of no name, with nothing that it may do.
NONE = Grant("", b"", (), (), False)


class Gate:
    """Judges requests for one peer."""

    def __init__(
        self,
        config: PeerConfig,
        keyring: Keyring | None,
        notes: LogLimit,
        counters: Counter[str],
        table: LinkTable,
        clients: dict[bytes, Client],
        streams: Callable[[], list[str]],
        topics_of: Callable[[str], str | None],
        links_of: Callable[[int], list[bytes]],
        cut_off: Callable[[set[bytes], float], None],
    ) -> None:
        self.keyring = keyring
        self.apart = keyring is not None and keyring.apart
        self.counters = counters
        self._config = config
        self._notes = notes
        self._table = table
        self._clients = clients
        self._streams = streams  # our own
        self._topics_of = topics_of  # of one that can be had here
        self._links_of = links_of  # who has a subscription of this number
        self._cut_off = cut_off  # ends what the holders of keys have here
        self._told: set[tuple[str, ...]] = set()
        self._look_due = 0.0
        self._declared = Declared()

    def open(self) -> None:
        """Raise `ConfigError` where everyone would refuse us."""
        user = b"" if self.keyring is None else self.keyring.curve.own.public.hex().encode()
        if self.apart and self.keyring is not None and self.keyring.own_name():
            reason = self.why_not(user, self._config.name)
            if reason:
                raise ConfigError("security", f"{reason}, says our own allow-list: name it so")
            self._warn_of_streams(self.grant(user))

    def _warn_of_streams(self, own: Grant) -> None:
        for stream in self._config.streams:
            if not own.may_publish(stream.topics):
                text = "%s: nobody will take it, our allow-list does not let us publish all of it"
                log.warning(text, stream.label)

    def tell_once(self, text: str, *values: str, by: str | None = None) -> None:
        """Warn of something, once."""
        if (text, *values) not in self._told:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            if self._notes.warning(text, *values, by=by):
                self._told.add((text, *values))

    # --- the allow-list ---

    def on_tick(self, now: float) -> float:
        """Look whether the allow-list has changed; returns when to come again."""
        if not self.apart:
            return float("inf")
        if now >= self._look_due:
            self._look_due = now + LOOK_S
            assert self.keyring is not None
            changed = self.keyring.look()
            if changed:
                self._cut_off(changed, now)
        return self._look_due

    def user_of(self, identity: bytes) -> bytes:
        """Who somebody is that dialled us."""
        client = self._clients.get(identity)
        return b"" if client is None else client.user

    def owner_of(self, identity: bytes) -> Owner:
        """Whose places somebody takes that dialled us."""
        client = self._clients.get(identity)
        return self.owner(self.user_of(identity), client.host if client else "", identity)

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

    def why_not_operate(self, user: bytes, host: str) -> str:
        """Why somebody may not operate this peer; empty if it may.

        Without keys everybody on the network could: so only programs on this machine may.
        """
        if self.keyring is None:
            if not host or ip_address(host).is_loopback:
                return ""
            return "without keys only programs on its own machine may operate a peer"
        if not self.apart or self.grant(user).operate:
            return ""
        name = self.grant(user).name or "nobody"
        return f"the allow-list does not let {name!r} operate this peer: operate = true"

    def is_another(self, instance: int, user: bytes) -> bool:
        """Whether the number of a peer belongs to another key."""
        return self.keyring is not None and not self.keyring.has_number(user, instance)

    def may_receive(self, user: bytes, stream: str) -> bool:
        """Whether a user may have all events of a stream of ours."""
        if not self.apart:
            return True
        topics = self._topics_of(stream)
        return topics is not None and self.grant(user).may_subscribe(topics)

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
        mesh, wire_id = self._config.mesh, int.from_bytes(prefix[:STREAM_BYTES], "little")
        found = next((s for s in self._streams() if c.stream_wire_id(mesh, s) == wire_id), None)
        if found is None:  # a subscription's own token; not a stream that is yet to be declared
            return len(prefix) == TOKEN_BYTES and prefix[:4] == TOKEN_START
        return len(prefix) == STREAM_BYTES and self.may_receive(user, found)

    def may_read(self, user: bytes, topics: str) -> bool:
        """Whether a user may read a log of these topics."""
        return not self.apart or self.grant(user).may_subscribe(topics)

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
            self.tell_once("%s asked for what it may not have: %s", name, type(message).__name__)
        return left

    def _is_anothers(self, user: bytes, sub: int) -> bool:
        """Whether a subscription that is here belongs to another key, which alone may change it."""
        return any(self.user_of(link) != user for link in self._links_of(sub))

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
            self.tell_once("%s has streams that it may not publish", welcome.peer)
        return replace(welcome, streams=own, recorded=recorded)

    def _screen_recorders(self, publisher: Link) -> None:
        """A publisher says what its streams are: not all who recorded them may lend them."""
        for link in self._table.up():
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
        """How peers are told apart."""
        return {
            "mode": "none" if self.keyring is None else "allow-list" if self.apart else "mesh key",
            "keys": 0 if self.keyring is None else len(self.keyring.grants),
        }

    def shares(self, quotas: dict[str, Quota]) -> dict[str, Any]:
        """Who has how many of the places that those who dial us share."""
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
        client = self._clients.get(owner.link)
        if client is not None:
            return client.peer
        name = self.grant(owner.host.encode()).name if self.apart else owner.host
        return f"{name or 'ipc'}{'#' if owner.link else ''}{owner.link.hex()}"


def _transcript(welcome: c.Welcome) -> bytes:
    return f"{welcome.mesh}\n{welcome.peer}\n{welcome.instance}".encode()
