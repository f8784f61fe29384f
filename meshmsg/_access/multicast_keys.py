"""The seals of a multicast stream: joins `Security` to the cores that seal and open packets.

Belongs here: where keys and ids come from, the clock, and what is logged.  `SendingSeal` is the
publisher's, `ReceivingSeal` that of one subscription.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from meshmsg._model.errors import ClosedError
from meshmsg._model.multicast_config import Multicast
from meshmsg._model.security_config import SECRET_BYTES, Security
from meshmsg._wire.multicast_info import SealInfo
from meshmsg._wire.packet import CONFIRM, DATA, HEARTBEAT, NACK, PARITY, REPAIR, SEAL_BYTES, STATUS
from meshmsg.recovery.multicast.seal import Opener, Sealer
from meshmsg.recovery.multicast.seal_keys import Derive, SealKeys

log = logging.getLogger("meshmsg.peer")

FROM_SENDER = (DATA, REPAIR, HEARTBEAT, CONFIRM, PARITY)
FROM_RECEIVER = (NACK, STATUS)
#: A key is given to receivers this long before it is used; who gets it later asks again.
LEAD_S = 0.5
#: When somebody may not read any more, the generation before is good for this long.
CUT_OVERLAP_S = 1.0
#: The clock may be set meanwhile: look at it this often at least.
LOOK_S = 10.0
_PURPOSE = b"multicast stream"

GiveKey = Callable[[int, bytes], None]

#: All of this process.
_sealers: WeakSet[Sealer] = WeakSet()


def _new_sealer(stream: int) -> Sealer:
    sealer = Sealer(stream, secrets.randbits(64))
    _sealers.add(sealer)
    return sealer


def _of_another_process(*args: Any) -> bytes:
    raise ClosedError("this peer is another process's: after a fork, open one of your own")


def _after_fork() -> None:
    """A copy of a sealer would use numbers that the first one uses, too: two packets under one
    nonce tell what is in them, and how to forge others.
    """
    for sealer in _sealers:
        sealer.use_cipher(_of_another_process)


os.register_at_fork(after_in_child=_after_fork)


def derive_of(security: Security, stream: int) -> Derive:
    """The keys of a stream, by generation."""

    @lru_cache(maxsize=4)
    def derive(generation: int) -> Sequence[bytes]:
        place = stream.to_bytes(8, "little") + generation.to_bytes(8, "little")
        return security.derive_all(_PURPOSE + place)

    return derive


def generation_of(security: Security) -> int:
    """The generation that the clock says."""
    return int(time.time() // float(security.rotate_every))


class SendingSeal:
    """The publisher's side of a sealed stream, for one epoch.

    The mesh key gives the keys of all generations, which change with the clock.  With `give`, keys
    are drawn at random instead, and handed to whoever may have them before they are used.
    """

    def __init__(self, security: Security, stream: int, give: GiveKey | None = None) -> None:
        self.sealer = _new_sealer(stream)
        derive = derive_of(security, stream) if give is None else None
        keys = SealKeys(derive, overlap_s=float(security.rotate_overlap), follows=False)
        self.opener = Opener(stream, keys, FROM_RECEIVER)
        self._security = security
        self._derive = derive
        self._give = give
        self._next: tuple[int, bytes, float] | None = None  # given, and not yet in use
        self._key = b""
        self._due = 0.0
        generation = generation_of(security)
        self._begin(generation, self._draw(generation))

    @property
    def counters(self) -> Counter[str]:
        """What receivers sent and could not be opened."""
        return self.opener.counters

    @property
    def generation(self) -> int:
        """In use."""
        return self.opener.keys.generation

    def info(self) -> SealInfo:
        """What a connected receiver is told: by whom, from where on and with which keys."""
        keys = []
        if self._give is not None:
            keys.append((self.generation, self._key))
            if self._next is not None:
                keys.append(self._next[:2])
        return SealInfo(self.sealer.sender, self.sealer.counter, self.generation, keys)

    def on_tick(self, now: float) -> float:
        """Begin a generation when it is time; returns when to come again."""
        if now < self._due:
            return self._due
        every = float(self._security.rotate_every)
        if self._next is not None:
            self._begin(self._next[0], self._next[1], now, self._next[2])
            self._next = None
        generation = generation_of(self._security)
        if generation > self.generation:
            if self._give is not None:
                return self._prepare(generation, float(self._security.rotate_overlap), now)
            self._begin(generation, self._draw(generation), now)
        self._due = now + min(LOOK_S, every - time.time() % every)
        return self._due

    def renew(self, now: float) -> None:
        """Somebody who has the key may not read any more: the others get another one."""
        if self._give is not None:
            generation = self.generation + 1 if self._next is None else self._next[0] + 1
            self._prepare(generation, CUT_OVERLAP_S, now)

    def _prepare(self, generation: int, overlap_s: float, now: float) -> float:
        assert self._give is not None
        key = self._draw(generation)
        self._next = (generation, key, overlap_s)
        self._give(generation, key)
        self._due = now + LEAD_S
        return self._due

    def _draw(self, generation: int) -> bytes:
        if self._derive is not None:
            return self._derive(generation)[0]
        return secrets.token_bytes(SECRET_BYTES)

    def _begin(
        self, generation: int, key: bytes, now: float = 0.0, overlap_s: float | None = None
    ) -> None:
        self._key = key
        if self._derive is None:
            self.opener.keys.give(generation, key)
        self.opener.begin(generation, now=now, overlap_s=overlap_s)
        self.sealer.use(generation, key)


class ReceivingSeal:
    """One subscription's side of a sealed stream."""

    def __init__(self, security: Security, stream: int, name: str, lines: int) -> None:
        self._security = security
        self._name = name
        derive = None if security.key_dir is not None else derive_of(security, stream)
        keys = SealKeys(derive, overlap_s=float(security.rotate_overlap))
        self.opener = Opener(stream, keys, FROM_SENDER, lines=lines)
        self._sealer = _new_sealer(stream)
        self._used: tuple[int, bytes] | None = None
        self._refused = 0
        self._told: set[str] = set()

    def enter(self, info: SealInfo | None) -> None:
        """A publisher has admitted us, and says how it seals."""
        if info is None:
            log.error("%s: its publisher does not seal it: its packets are dropped", self._name)
            return
        self.give(info.keys)
        self.opener.listen_to(info.sender, info.counter)
        self.opener.begin(info.generation)

    def give(self, keys: Sequence[tuple[int, bytes]]) -> None:
        """Keys that the publisher hands out."""
        for generation, key in keys:
            self.opener.keys.give(generation, key)

    def expect(self) -> None:
        """Without a connection: nobody but the clock says which generation it should be."""
        self.opener.keys.expect(generation_of(self._security))

    def open(self, data: bytes, packet_bytes: int, line: int, now: float) -> bytes:
        """The packets that prove themselves."""
        opener = self.opener
        opened = opener.open(data, packet_bytes, now=now, line=line)
        if opener.counters and opener.counters.total() != self._refused:
            self._refused = opener.counters.total()
            self._tell()
        return opened

    @property
    def counters(self) -> Counter[str]:
        """What could not be opened."""
        return self.opener.counters

    @property
    def is_ready(self) -> bool:
        """Whether we know which key the publisher understands: that of its own packets."""
        return bool(self.opener.group_key)

    def seal(self, packet: bytes) -> bytes:
        """A packet of ours, under the key that the publisher's packets came with."""
        opener = self.opener
        using = (opener.keys.generation, opener.group_key)
        if using != self._used:
            self._sealer.use(*using)
            self._used = using
        return bytes(self._sealer.seal(packet, len(packet)))

    def _tell(self) -> None:
        """Say once what is wrong with packets."""
        for reason, what in _REASONS.items():
            if reason not in self._told and self.opener.counters[reason]:
                self._told.add(reason)
                log.warning("%s: %s", self._name, what)


def receiving_seal(
    security: Security | None, stream: int, name: str, lines: int
) -> ReceivingSeal | None:
    """The seal of a stream that is received, where there is security."""
    return None if security is None else ReceivingSeal(security, stream, name, lines)


def sealed_bytes(config: Multicast, security: Security | None) -> int:
    """The largest data packet before it is sealed."""
    return config.packet_bytes - (0 if security is None else SEAL_BYTES)


def sealed(seal: ReceivingSeal | None, packet: bytes) -> bytes:
    """A packet as it is sent: sealed, if there is a seal."""
    return packet if seal is None else seal.seal(packet)


_REASONS = {
    "unknown_key": "packets are sealed with a key that we do not have, and dropped: the publisher "
    "has another mesh key, its clock or ours is wrong, or a stranger sends them",
    "unsealed": "packets are not sealed, and dropped: somebody without a key sends to the group",
    "forged": "packets do not prove themselves, and are dropped: somebody changes or invents them",
}
