"""Sealed packets: encrypted, and refused if anything about them is not the sender's.

Every packet of a stream is sealed by itself, with AES-256-GCM.  Each sender has a key of its own,
derived from the stream's and from an id that it drew at random, and counts its packets: so no two
packets are ever sealed with the same key and nonce, whatever else two senders have in common.

Belongs here: bytes in, bytes out, and which of them are new.  Does not belong here: where keys come
from, clocks and random numbers (the roof), and what an opened packet means (`packet_receiver`,
`packet_sender`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

from meshmsg._native import COMPILED
from meshmsg._wire.packet import PACKET_MAGIC, SEAL_BYTES, SEALED_HEAD, SEALED_MAGIC, TAG_BYTES
from meshmsg.recovery.multicast.replay_window import ReplayWindow
from meshmsg.recovery.multicast.seal_keys import SealKeys

if COMPILED:
    from meshmsg import _speed

COUNTER_BITS = 48
COUNTER_MAX = (1 << COUNTER_BITS) - 1
#: Senders that are known; the one that was heard longest ago is forgotten first.
SENDERS_MAX = 16_384
_PURPOSE = b"meshmsg multicast sender 1"
#: The clear head and the tag are there, and something between them.
_SEALED_MIN = SEALED_HEAD.size + TAG_BYTES + 1
_HEAD_BYTES = SEALED_HEAD.size
#: What a packet and a sealed one begin with, but for the magic: kind, flags, extra and stream.
_CLEAR = Struct("<4s4sQ")
_CLEAR_BYTES = _CLEAR.size
_NONCE_AT = 20
_unpack_head = SEALED_HEAD.unpack_from
_pack_head = SEALED_HEAD.pack
_pack_clear = _CLEAR.pack

#: Of nonce, data, and what is authenticated beside it.
Crypt = Callable[[bytes, Any, bytes], bytes]


def sender_key(group_key: bytes, sender: int) -> bytes:
    """The key of one sender."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = _PURPOSE + sender.to_bytes(8, "little")
    return HKDF(SHA256(), 32, None, info).derive(group_key)


def _cipher(group_key: bytes, sender: int) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(sender_key(group_key, sender))


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag


class Sealer:
    """Seals what one sender sends."""

    def __init__(self, stream: int, sender: int) -> None:
        self.stream = stream
        self.sender = sender
        self.counter = 0  #: of the next packet; goes on through all generations
        self._generation_part = 0
        self._encrypt: Crypt | None = None
        self._scratch = bytearray()  # used again: to map that much memory anew takes its time

    def use(self, generation: int, key: bytes) -> None:
        """Seal with the key of this generation from now on."""
        self.use_cipher(_cipher(key, self.sender).encrypt)
        self._generation_part = (generation & 0xFFFF) << COUNTER_BITS

    def use_cipher(self, encrypt: Crypt) -> None:
        """Seal by this from now on."""
        self._encrypt = encrypt

    def seal(self, data: bytes, packet_bytes: int) -> bytes | memoryview:
        """Seal packets that stand one behind the other; each becomes `SEAL_BYTES` longer.

        What is returned holds until the next call.
        """
        encrypt = self._encrypt
        assert encrypt is not None, "no key yet"
        count = -(-len(data) // packet_bytes)
        if self.counter + count > COUNTER_MAX:
            raise OverflowError("this sender has sealed all that it can: start it anew")
        stream, sender = self.stream, self.sender
        number = self._generation_part + self.counter
        self.counter += count
        if COMPILED:
            size = len(data) + count * SEAL_BYTES
            if len(self._scratch) < size:
                self._scratch = bytearray(size)
            out = self._scratch
            _speed.seal_packets(encrypt, data, packet_bytes, stream, sender, number, out)
            return memoryview(out)[:size]
        parts: list[bytes] = []
        put = parts.append
        for at in range(0, len(data), packet_bytes):
            head = _pack_head(SEALED_MAGIC, data[at + 4 : at + 8], stream, sender, number)
            number += 1
            put(head)
            put(encrypt(head[_NONCE_AT:], data[at + _CLEAR_BYTES : at + packet_bytes], head))
        return b"".join(parts)


class _Sender:
    """One sender whose packets have proved themselves."""

    __slots__ = ("ciphers", "first", "lines", "window")

    def __init__(self, first: int, lines: int) -> None:
        self.ciphers: dict[int, tuple[int, Crypt]] = {}  # by the generation's lowest bits
        self.first = first  # what it sealed before was not for us
        self.window = ReplayWindow(first)
        #: What came by each of several lines, for statistics: a second copy is no replay there.
        self.lines = [ReplayWindow(first) for _ in range(lines)] if lines > 1 else []


class Opener:
    """Opens the packets of a stream, whoever sealed them, each once.

    What cannot be opened is counted, and changes nothing else.
    """

    def __init__(
        self, stream: int, keys: SealKeys, kinds: Iterable[int], *, lines: int = 1
    ) -> None:
        self.stream = stream
        self.keys = keys
        self.counters: Counter[str] = Counter()
        self.copies = [0] * lines  #: what each line brought that another one had brought before
        self.group_key = b""  #: under which a packet was opened last
        self._kinds = frozenset(kinds)
        self._kinds_mask = sum(1 << kind for kind in self._kinds)
        self._only: int | None = None
        self._senders: OrderedDict[int, _Sender] = OrderedDict()
        self._hot: tuple[int, int, _Sender, Crypt] | None = None  # whose packets come mostly
        self._line_count = lines
        self._invalid = _invalid_tag()

    def listen_to(self, sender: int, counter: int) -> None:
        """Only this sender is heard from now on, from its packet with this counter on."""
        self._only = sender
        self.group_key = b""
        self._hot = None
        self._senders.clear()
        self._senders[sender] = _Sender(counter, self._line_count)

    def open(self, data: bytes, packet_bytes: int, *, now: float, line: int = 0) -> bytes:
        """The packets that prove themselves, each `SEAL_BYTES` shorter, one behind the other."""
        if now >= self.keys.retire_at:
            self._retire(now)
        source, size = memoryview(data), len(data)
        parts: list[bytes] = []
        put = parts.append
        at = self._open_run(data, 0, packet_bytes, line, put) if self._hot is not None else 0
        last = -1
        generation_part = -1  # of the sender's packets that `decrypt` opens
        known: _Sender | None = None
        decrypt: Crypt | None = None
        while at < size:
            start, at = at, at + packet_bytes
            if at > size:
                at = size
            if at - start < _HEAD_BYTES:
                self.counters["bad_packets"] += 1
                continue
            magic, words, stream, sender, number = _unpack_head(data, start)
            if (
                magic != SEALED_MAGIC
                or stream != self.stream
                or words[0] not in self._kinds
                or at - start < _SEALED_MIN
            ):
                self._count_other(magic, stream, at - start)
                continue
            if sender != last or number >> COUNTER_BITS != generation_part:
                last, generation_part = sender, number >> COUNTER_BITS
                known, decrypt = self._find(sender, generation_part)
            counter = number & COUNTER_MAX
            if known is not None:
                window = known.window
                if counter != window.next and not window.is_new(counter):
                    self._count_again(known, counter, line)
                    continue
            head, body = data[start : start + _HEAD_BYTES], source[start + _HEAD_BYTES : at]
            if decrypt is None or known is None:
                found = self._try(known, sender, number, head, body, now)
                last = -1  # look it up: it may be known now
                if found is None:
                    continue
                known, opened = found
                window = known.window
            else:
                try:
                    opened = decrypt(head[_NONCE_AT:], body, head)
                except self._invalid:
                    self.counters["forged"] += 1
                    continue
            if counter == window.next:
                window.next = counter + 1
            else:
                window.take(counter)
            if known.lines:
                known.lines[line].take(counter)
            put(_pack_clear(PACKET_MAGIC, words, stream))
            put(opened)
            if COMPILED and decrypt is not None:
                self._hot = sender, generation_part, known, decrypt
                if at < size:
                    at = self._open_run(data, at, packet_bytes, line, put)
        return b"".join(parts)

    def _open_run(
        self, data: bytes, at: int, packet_bytes: int, line: int, put: Callable[[bytes], None]
    ) -> int:
        """Of the sender heard last, the packets that are next; returns where they end.

        That is the way of nearly all.
        """
        assert self._hot is not None
        sender, generation_part, known, decrypt = self._hot
        window = known.window
        first = window.next
        if first > COUNTER_MAX:
            return at  # no counter is next
        opened, count = _speed.open_packets(
            decrypt,
            self._invalid,
            data,
            at,
            packet_bytes,
            self.stream,
            sender,
            (generation_part << COUNTER_BITS) + first,
            self._kinds_mask,
        )
        if count:
            put(opened)
            window.next = first + count
            if known.lines:
                known.lines[line].take_run(first, count)
        return at + count * packet_bytes

    def begin(self, generation: int, *, now: float = 0.0, overlap_s: float | None = None) -> None:
        """A generation is in use from now on, because we say so."""
        self.keys.begin(generation, now=now, overlap_s=overlap_s)
        self._forget_ciphers()

    def _find(self, sender: int, low: int) -> tuple[_Sender | None, Crypt | None]:
        known = self._senders.get(sender)
        if known is None:
            return None, None
        self._senders.move_to_end(sender)
        found = known.ciphers.get(low)
        return known, None if found is None else found[1]

    def _try(
        self,
        known: _Sender | None,
        sender: int,
        number: int,
        head: bytes,
        body: memoryview,
        now: float,
    ) -> tuple[_Sender, bytes] | None:
        """A sender or a generation that was not heard before: whether this is really it."""
        counter, low = number & COUNTER_MAX, number >> COUNTER_BITS
        candidates = [] if known is None and self._only is not None else self.keys.candidates(low)
        for generation, key in candidates:
            decrypt = _cipher(key, sender).decrypt
            try:
                opened = decrypt(head[_NONCE_AT:], body, head)
            except self._invalid:
                continue
            if known is None:
                known = self._senders[sender] = _Sender(counter, self._line_count)
                if len(self._senders) > SENDERS_MAX:
                    self._senders.popitem(last=False)
            known.ciphers[low] = generation, decrypt
            if self.keys.heard(generation, now=now):
                self._forget_ciphers()
            if generation == self.keys.generation:
                self.group_key = key
            return known, opened
        heard = known is not None and bool(known.ciphers) and bool(candidates)
        other = known is None and self._only is not None
        self.counters["other_senders" if other else "forged" if heard else "unknown_key"] += 1
        return None

    def _retire(self, now: float) -> None:
        self.keys.retire(now=now)
        self._forget_ciphers()

    def _forget_ciphers(self) -> None:
        """Of generations that are not good any more."""
        self._hot = None
        good = self.keys.good()
        for known in self._senders.values():
            stale = [
                low for low, (generation, _) in known.ciphers.items() if generation not in good
            ]
            for low in stale:
                del known.ciphers[low]

    def _count_other(self, magic: bytes, stream: int, size: int) -> None:
        if magic == PACKET_MAGIC and stream == self.stream:
            self.counters["unsealed"] += 1
        elif magic in (PACKET_MAGIC, SEALED_MAGIC) and size >= _SEALED_MIN:
            self.counters["strange_packets"] += 1
        else:
            self.counters["bad_packets"] += 1

    def _count_again(self, known: _Sender, counter: int, line: int) -> None:
        if counter < known.first:
            self.counters["early_packets"] += 1
        elif known.lines and known.lines[line].is_new(counter):
            known.lines[line].take(counter)
            self.copies[line] += 1
        else:
            self.counters["replayed"] += 1
