"""Key files: made so that nobody else ever sees a secret, and changed in one step."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from meshmsg._access.allow_list import Grant
from meshmsg._access.keyring import read_allow, read_pair
from meshmsg._model.errors import ConfigError
from meshmsg._model.security_config import (
    ALLOW_NAME,
    MESH_KEY_NAME,
    PEER_KEY_NAME,
    Security,
    check_key,
    derive,
    read_secret,
)
from meshmsg.transports.zmq.curve import KEY_BYTES, pair_of

_HEAD = """\
# Who takes part in the mesh, and what each may do; read again when it changes.
# `meshmsg keys allow` and `meshmsg keys revoke` write this file anew.
"""


def new_folder(folder: Path, name: str, mesh_key: str | None) -> Grant:
    """Make a folder with a mesh key (a new one, or this), a key for a peer, and an allow-list.

    Raises `ConfigError` where there is one already: nothing is ever overwritten.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode & 0o777
    except OSError as error:
        raise ConfigError(str(folder), f"cannot be made: {error.strerror}") from None
    if mode & 0o022:
        problem = f"has mode {mode:04o}, so that others may change it: chmod 700 {folder}"
        raise ConfigError(str(folder), problem)
    for known in (MESH_KEY_NAME, PEER_KEY_NAME):
        if (folder / known).exists():
            raise ConfigError(str(folder / known), "is there already, and is not overwritten")
    secret = secrets.token_bytes(KEY_BYTES)
    grant = Grant(name, pair_of(secret).public)
    key = secrets.token_urlsafe(KEY_BYTES) if mesh_key is None else mesh_key
    files = [(MESH_KEY_NAME, f"{key}\n", 0o600), (PEER_KEY_NAME, f"{secret.hex()}\n", 0o600)]
    if not (folder / ALLOW_NAME).exists():
        files.append((ALLOW_NAME, format_allow([grant]), 0o644))
    made: list[Path] = []
    try:
        for file, text, mode in files:
            write_new(folder / file, text, mode)
            made.append(folder / file)
    except ConfigError:  # else the next attempt would find some of them there already
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return grant


def read_mesh_key(path: Path) -> str:
    """The text of a file with mesh keys, checked; raises `ConfigError`."""
    words = read_secret(path).decode("ascii", "replace").split()
    if not words:
        raise ConfigError(str(path), "is empty")
    for word in words:
        check_key(str(path), word)
    return "\n".join(words)


def write_new(path: Path, text: str, mode: int) -> None:
    """Write a file that is not there yet: whole or not at all, and never with a wider mode."""
    scratch = _scratch(path, text, mode)
    try:
        os.link(scratch, path)
    except FileExistsError:
        raise ConfigError(str(path), "is there already, and is not overwritten") from None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror}") from None
    finally:
        os.unlink(scratch)


def write_allow(path: Path, grants: Iterable[Grant]) -> None:
    """Put an allow-list in the place of the last one; readers see the one or the other."""
    scratch = _scratch(path, format_allow(grants), 0o644)
    try:
        os.replace(scratch, path)
    except OSError as error:
        os.unlink(scratch)
        raise ConfigError(str(path), f"cannot be written: {error.strerror}") from None


def _scratch(path: Path, text: str, mode: int) -> Path:
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask is
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        scratch.unlink(missing_ok=True)  # the disk is full: nothing of a key is left
        raise ConfigError(str(path), f"cannot be written: {error.strerror}") from None
    return scratch


def format_allow(grants: Iterable[Grant]) -> str:
    """An `allow.toml`."""
    parts = [_HEAD]
    for grant in grants:
        lines = ["[[peer]]", f"name = {_toml(grant.name)}", f'key = "{grant.key.hex()}"']
        if grant.publish != ("**",):
            lines.append(f"publish = {_toml(list(grant.publish))}")
        if grant.subscribe != ("**",):
            lines.append(f"subscribe = {_toml(list(grant.subscribe))}")
        if not grant.stats:
            lines.append("stats = false")
        if grant.operate:
            lines.append("operate = true")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _toml(value: str | list[str]) -> str:
    """A text or texts as TOML.  It is JSON, which would write letters beyond U+FFFF as two."""
    return json.dumps(value, ensure_ascii=False)


def allow(folder: Path, grant: Grant) -> bool:
    """Put a peer on the list, or change what it may; whether it is new."""
    path = folder / ALLOW_NAME
    grants = read_allow(path) if path.exists() else {}
    fresh = grant.key not in grants
    grants[grant.key] = grant
    write_allow(path, grants.values())
    return fresh


def revoke(folder: Path, who: str) -> list[Grant]:
    """Take peers off the list, by name or public key; returns them."""
    path = folder / ALLOW_NAME
    grants = read_allow(path)
    gone = [grant for grant in grants.values() if who in (grant.name, grant.key.hex())]
    if gone:
        write_allow(path, [grant for grant in grants.values() if grant not in gone])
    return gone


def describe(folder: Path) -> dict[str, object]:
    """What is in a folder, without its secrets; raises `ConfigError`."""
    security = Security.from_files(folder)
    pair = read_pair(folder / PEER_KEY_NAME)
    return {
        "folder": str(folder),
        "key": pair.public.hex(),
        "mesh_keys": [derive(key, b"fingerprint")[:8].hex() for key in security.keys],
        "allow": [
            {
                "name": grant.name,
                "key": grant.key.hex(),
                "publish": list(grant.publish),
                "subscribe": list(grant.subscribe),
                "stats": grant.stats,
                "operate": grant.operate,
            }
            for grant in read_allow(folder / ALLOW_NAME).values()
        ],
    }
