"""`Security`: the keys of a mesh, and where they are kept.  What they are used for is not here.

Every secret that peers share comes from the mesh key by `derive`, one for each purpose, so that
none of them says anything about another.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshmsg._model.errors import ConfigError
from meshmsg._model.extras import need
from meshmsg._model.units import one_of, parse_time, set_field, several

# A mesh key is 32 random bytes as text, in base64 (either alphabet) or in hexadecimal digits.  What
# a person makes up can be guessed offline by one captured packet: it is refused by its form, and
# where it has the form, by what a random text lacks less than once in a million times.
_BASE64 = re.compile(rb"[A-Za-z0-9_/+-]{43}=?")
_HEX = re.compile(rb"[0-9a-fA-F]{64}")
BASE64_DIFFERENT_MIN = 16
HEX_DIFFERENT_MIN = 10
EACH_CASE_MIN = 3
MESH_KEYS_MAX = 8
KEY_FILE_BYTES_MAX = 64 * 1024
SECRET_BYTES = 32
ROTATE_MIN_S = 1.0
ROTATE_MAX_S = 86_400.0
_SALT = b"meshmsg mesh key 1"

MESH_KEY_NAME = "mesh.key"
PEER_KEY_NAME = "peer.key"
ALLOW_NAME = "allow.toml"
EDGES = ("statsd", "nanomsg", "moldudp", "webhooks")


@dataclass(frozen=True, slots=True)
class Security:
    """Who may take part: holders of a mesh key, or those of them that an allow-list names.

    >>> Security(key_dir="./keys")                                            # doctest: +SKIP
    """

    mesh_key: str | bytes | None = field(default=None, repr=False)
    """The secret that all peers of the mesh share; `meshmsg keys new` makes one."""
    mesh_key_file: str | None = None
    """A file with it, which nobody else may read; further lines are `other_keys`."""
    key_dir: str | None = None
    """A folder of `meshmsg keys new`: mesh key, this peer's own key, and the allow-list."""
    other_keys: str | bytes | Sequence[str | bytes] = field(default=(), repr=False)
    """Mesh keys that are understood too, while the key is being changed."""
    plain: Sequence[str] = ()
    """Edges that may leave the machine without keys: `statsd`, `nanomsg`, `moldudp`, `webhooks`."""
    rotate_every: float | str = "1h"
    """How long multicast packets are sealed with one key."""
    rotate_overlap: float | str = "5s"
    """For how long packets are still opened with the key before it."""
    keys: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("mesh_key_file", "key_dir"):
            value = getattr(self, name)
            if isinstance(value, Path):
                set_field(self, name, str(value))
            elif value is not None and (not isinstance(value, str) or not value):
                raise ConfigError(f"security.{name}", "is not a path: write it in quotes")
        places = [n for n in ("mesh_key", "mesh_key_file", "key_dir") if getattr(self, n)]
        if len(places) != 1:
            problem = "give one of mesh_key, mesh_key_file and key_dir; `meshmsg keys new DIR`"
            raise ConfigError("security", f"{problem} makes such a folder")
        edges = several("security.plain", self.plain, str, f"one of {', '.join(EDGES)}")
        set_field(self, "plain", tuple(one_of("security.plain", edge, EDGES) for edge in edges))
        self._check_times()
        wanted = "a mesh key or a list of them"
        others = _several_keys(self.other_keys, wanted)
        set_field(self, "other_keys", others)
        set_field(self, "keys", (*self._given(), *(check_key("other_keys", k) for k in others)))
        if len(self.keys) > MESH_KEYS_MAX:
            raise ConfigError("security.other_keys", f"are more than {MESH_KEYS_MAX} mesh keys")

    def _check_times(self) -> None:
        for name in ("rotate_every", "rotate_overlap"):
            set_field(self, name, parse_time(f"security.{name}", getattr(self, name)))
        if not ROTATE_MIN_S <= self.rotate_every <= ROTATE_MAX_S:  # type: ignore[operator]
            raise ConfigError("security.rotate_every", "must be from 1s to a day")
        if not self.rotate_overlap <= self.rotate_every:  # type: ignore[operator]
            raise ConfigError("security.rotate_overlap", "is longer than rotate_every")

    def _given(self) -> tuple[bytes, ...]:
        if self.mesh_key is not None:
            return (check_key("mesh_key", self.mesh_key),)
        path = Path(self.mesh_key_file or Path(self.key_dir or "") / MESH_KEY_NAME)
        words = read_secret(path).decode("ascii", "replace").split()
        if not words:
            raise ConfigError(str(path), "is empty: `meshmsg keys new DIR` makes a mesh key")
        return tuple(check_key(str(path), word) for word in words)

    @classmethod
    def from_files(cls, folder: str | Path) -> Security:
        """What a folder of `meshmsg keys new` holds; raises `ConfigError`."""
        return cls(key_dir=str(folder))

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Security | None:
        """What `MESHMSG_KEYS`, `MESHMSG_MESH_KEY_FILE` or `MESHMSG_MESH_KEY` say, if any does."""
        folder, file, key = (
            environ.get(f"MESHMSG_{word}") or None for word in ("KEYS", "MESH_KEY_FILE", "MESH_KEY")
        )
        if folder is None and file is None and key is None:
            return None
        return cls(mesh_key=key, mesh_key_file=file, key_dir=folder)

    def derive(self, purpose: bytes) -> bytes:
        """32 secret bytes for one purpose, from the mesh key that is in use."""
        return derive(self.keys[0], purpose)

    def derive_all(self, purpose: bytes) -> tuple[bytes, ...]:
        """The same of each mesh key that is understood; the one in use comes first."""
        return tuple(derive(key, purpose) for key in self.keys)


def derive(key: bytes, purpose: bytes) -> bytes:
    """32 secret bytes for one purpose: HKDF with SHA-256."""
    hkdf = need("cryptography.hazmat.primitives.kdf.hkdf", "security", "security")
    hashes = need("cryptography.hazmat.primitives.hashes", "security", "security")
    made: bytes = hkdf.HKDF(hashes.SHA256(), SECRET_BYTES, _SALT, purpose).derive(key)
    return made


def check_key(where: str, key: object) -> bytes:
    """A mesh key as bytes; raises `ConfigError`, which never holds the key."""
    field_name = where if "/" in where else f"security.{where}"
    if not isinstance(key, str | bytes):
        raise ConfigError(field_name, f"a {type(key).__name__} is not a mesh key: write a text")
    data = key.strip().encode() if isinstance(key, str) else bytes(key)
    if not _is_drawn(data):
        problem = "is too easy to guess: a mesh key is 32 random bytes, as 43 characters of base64"
        raise ConfigError(field_name, f"{problem} or 64 digits; `meshmsg keys new` makes one")
    return data


def _is_drawn(key: bytes) -> bool:
    """Return True for a text that a machine drew, as far as its letters tell."""
    if _HEX.fullmatch(key):
        return len(set(key)) >= HEX_DIFFERENT_MIN
    if not _BASE64.fullmatch(key) or len(set(key)) < BASE64_DIFFERENT_MIN:
        return False
    text = key.decode("ascii")
    return min(sum(map(str.isupper, text)), sum(map(str.islower, text))) >= EACH_CASE_MIN


def read_secret(path: Path) -> bytes:
    """The content of a file that only its owner may read; raises `ConfigError`."""
    try:
        return read_own(path, 0o077, "read it: chmod 600", KEY_FILE_BYTES_MAX)
    except OSError as error:
        hint = "; `meshmsg keys new DIR` makes one" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(str(path), f"cannot be read: {error.strerror}{hint}") from None


def read_own(path: Path | str, others: int, may: str, bytes_max: int) -> bytes:
    """The content of a file of ours, of which others have none of these rights.

    Raises `ConfigError` and `OSError`.
    """
    # Not blocking: what is no file but a pipe would hold us up for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())  # of this very file, whatever is there in a moment
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(str(path), "is not a file")
        if mode & others:
            problem = f"has mode {mode:04o}, so that others may {may} {path}"
            raise ConfigError(str(path), problem)
        us = os.geteuid()
        if found.st_uid not in (0, us):
            problem = f"belongs to user {found.st_uid}, and we are {us}: chown {us} {path}"
            raise ConfigError(str(path), problem)
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ConfigError(str(path), "is too large for a key file")
    return data


def _several_keys(value: object, wanted: str) -> tuple[str | bytes, ...]:
    if isinstance(value, str | bytes):
        return (value,)
    try:
        return several("security.other_keys", value, str, wanted)
    except ConfigError:  # whose text would show the keys
        raise ConfigError("security.other_keys", f"is not {wanted}") from None
