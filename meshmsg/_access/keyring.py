"""The keys of one open peer: what its sockets put on, whom it lets in, and proofs of who it is.

Two ways.  With a mesh key alone, everyone who has it is the same: all may do all.  With a folder of
keys, each peer has a pair of its own and the allow-list says who may do what; it is read again when
it changes.  The control channel is entered with the mesh key in both, so that a peer can be dialled
whose own key is not known yet; it then proves its own key in its `welcome`.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from hashlib import sha256
from pathlib import Path

from meshmsg import _platform
from meshmsg._access.allow_list import Grant, Names, parse_allow
from meshmsg._model.errors import ConfigError
from meshmsg._model.extras import need
from meshmsg._model.security_config import (
    ALLOW_NAME,
    KEY_FILE_BYTES_MAX,
    MESH_KEY_NAME,
    PEER_KEY_NAME,
    Security,
    derive,
    read_own,
    read_secret,
)
from meshmsg._wire import control as c
from meshmsg.transports.zmq.curve import KEY_BYTES, WORK, Curve, Pair, pair_of

log = logging.getLogger("meshmsg.peer")

#: The user's id of everyone, where there is only a mesh key.
EVERYONE = b"mesh"
ALL = Grant("*", b"")
_DOOR = b"curve control server"
_CLIENT = b"curve client"
_WELCOME = b"welcome"
#: Of the 63 bits of a peer's number, those that are drawn at random where its key says the others.
NUMBER_BITS = 23
#: Bytes of a question that a proof answers.
NONCE_BYTES = 16


class Keyring:
    """What a peer with a `Security` has; raises `ConfigError` where its files are not right.

    The list is read again by the I/O thread only; the rest may be asked from any.
    """

    def __init__(self, security: Security) -> None:
        self._security = security
        doors = [pair_of(secret) for secret in security.derive_all(_DOOR)]
        clients = [pair_of(secret) for secret in security.derive_all(_CLIENT)]
        self.path: Path | None = None
        self.grants: dict[bytes, Grant] = {}
        self._names = Names(())
        self._seen = self._coming = (0, 0, 0)
        self._everyone = frozenset(pair.public for pair in clients)
        own = data = None
        if security.key_dir is not None:
            folder = Path(security.key_dir)
            own = data = read_pair(folder / PEER_KEY_NAME)
            self.path = folder / ALLOW_NAME
            self.grants, self._names = self._read()
        self.curve = Curve(
            door=doors[0],
            data=data or doors[0],
            own=own or clients[0],
            doors=tuple(pair.public for pair in doors),
        )

    @property
    def apart(self) -> bool:
        """Whether peers are told apart."""
        return self.path is not None

    # --- who may ---

    def user(self, domain: bytes, key: bytes) -> bytes | None:
        """The id of whoever shows a key at a socket of ours; `None` if it may not come in."""
        if not self.apart:
            return EVERYONE if key in self._everyone else None
        if key not in self.grants:
            return None
        user = key.hex().encode()
        if domain.startswith(WORK) and domain[len(WORK) :] != user:
            return None  # somebody else's work
        return user

    def grant(self, user: bytes) -> Grant | None:
        """What a user may do; `None` if it is not on the list (any more)."""
        if not self.apart:
            return ALL
        try:
            return self.grants.get(bytes.fromhex(user.decode("ascii")))
        except ValueError:
            return None

    def may_be_named(self, user: bytes, peer: str) -> bool:
        """Return True if a user may call itself so."""
        grant = self.grant(user)
        return grant is ALL or (grant is not None and grant.key in self._names.keys_of(peer))

    def draw_number(self) -> int:
        """A number for one start of this peer; where peers are told apart, one of our own key."""
        if not self.apart:
            return _platform.randbits(63)
        return _number_part(self.curve.own.public) << NUMBER_BITS | secrets.randbits(NUMBER_BITS)

    def has_number(self, user: bytes, number: int) -> bool:
        """Whether a peer of this user can have drawn this number: nobody takes another's."""
        if not self.apart:
            return True
        return number >> NUMBER_BITS == _number_part(bytes.fromhex(user.decode("ascii")))

    def own_name(self) -> str:
        """What the allow-list calls us; empty if it does not."""
        grant = self.grants.get(self.curve.own.public)
        return "" if grant is None else grant.name

    # --- the list ---

    def look(self) -> set[bytes]:
        """Read the list again if it has changed; returns the keys that may do less than before."""
        if self.path is None or (stamp := _stamp(self.path)) == self._seen:
            return set()
        if stamp != self._coming:  # half of it may be written: not before it stays as it is
            self._coming = stamp
            return set()
        try:
            fresh, names = self._read()
        except ConfigError as error:
            # Fail closed would cut off everyone for a slip of the pen: what was said last holds.
            log.error("the allow-list was not read again, and the last one holds: %s", error)
            return set()
        old, self.grants = self.grants, fresh
        added = {grant.name for grant in fresh.values()} - {grant.name for grant in old.values()}
        self._names = names
        log.info("the allow-list was read again: %d keys", len(fresh))
        # A new entry takes its names from those who could use them by a `*`.
        return {
            key
            for key, grant in old.items()
            if fresh.get(key) != grant
            or (grant.name[-1:] == "*" and any(n.startswith(grant.name[:-1]) for n in added))
        }

    def _read(self) -> tuple[dict[bytes, Grant], Names]:
        assert self.path is not None
        self._seen = _stamp(self.path)
        grants = read_allow(self.path)
        return grants, Names(grants.values())

    # --- proofs ---

    def prove(self, user: bytes, nonce: bytes, transcript: bytes) -> bytes:
        """For whoever dialled us: that we have our own key."""
        return self._code(bytes.fromhex(user.decode("ascii")), nonce, transcript)

    def is_proved(self, key: bytes, nonce: bytes, transcript: bytes, proof: bytes) -> bool:
        """Whether whom we dialled has the key that it names."""
        if len(key) != KEY_BYTES:
            return False
        try:
            return hmac.compare_digest(self._code(key, nonce, transcript), proof)
        except ValueError:  # a key that is none
            return False

    def _code(self, theirs: bytes, nonce: bytes, transcript: bytes) -> bytes:
        """Only the two of us can make this: what both have in common is never sent.

        It holds for us alone: whoever passes our question on is asked with a key of its own.
        """
        x25519 = need("cryptography.hazmat.primitives.asymmetric.x25519", "security", "security")
        own = x25519.X25519PrivateKey.from_private_bytes(self.curve.own.secret)
        shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(theirs))
        return hmac.digest(derive(shared, _WELCOME), nonce + transcript, sha256)


def logs_transcript(logs: c.Logs) -> bytes:
    """What is proved of an answer about logs."""
    return f"logs\n{logs.peer}\n{logs.number}".encode()


def read_pair(path: Path) -> Pair:
    """The key pair of a `peer.key`; raises `ConfigError`."""
    text = read_secret(path).strip()
    try:
        secret = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ConfigError(str(path), "is not a peer's key: `meshmsg keys new DIR` makes one")
    return pair_of(secret)


def read_allow(path: Path) -> dict[bytes, Grant]:
    """The grants of an `allow.toml` that only its owner can change; raises `ConfigError`."""
    try:
        data = read_own(path, 0o022, "change it: chmod 644", KEY_FILE_BYTES_MAX * 1024)
    except FileNotFoundError:
        problem = "is missing: `meshmsg keys allow` writes it; to let in everyone who has the mesh"
        other = path.with_name(MESH_KEY_NAME)
        raise ConfigError(str(path), f"{problem} key, write mesh_key_file={str(other)!r}") from None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    try:
        return parse_allow(data.decode(), str(path))
    except UnicodeDecodeError:
        raise ConfigError(str(path), "is not UTF-8 text") from None


def _number_part(key: bytes) -> int:
    return int.from_bytes(sha256(b"meshmsg instance" + key).digest()[:5], "little")


def _stamp(path: Path) -> tuple[int, int, int]:
    """Changes when the file does."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)
