"""The keys of a mesh, and who may do what: what `meshmsg keys` does.

>>> import tempfile
>>> from meshmsg import keys
>>> folder = tempfile.mkdtemp()
>>> grant = keys.new_folder(folder, "pricing")
>>> [row["name"] for row in keys.describe(folder)["allow"]]
['pricing']

A peer takes part with them by `Security(key_dir=folder)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshmsg._access import key_files
from meshmsg._access.allow_list import Grant, check_grant_name, check_patterns, parse_public_key
from meshmsg._access.keyring import Keyring
from meshmsg._model.errors import ConfigError
from meshmsg._model.security_config import KEY_FILE_BYTES_MAX, Security, read_own

__all__ = [
    "Grant",
    "allow",
    "describe",
    "grant_of",
    "new_folder",
    "own_name",
    "read_private",
    "revoke",
]


def new_folder(folder: str | Path, name: str, *, mesh_key_file: str | Path | None = None) -> Grant:
    """Make a folder with a mesh key, a peer's own key and an allow-list that has that peer.

    The mesh key is a new one, or that of a file. Raises `ConfigError`, also where there are keys
    already: nothing is overwritten.
    """
    known = None if mesh_key_file is None else key_files.read_mesh_key(Path(mesh_key_file))
    return key_files.new_folder(Path(folder), check_grant_name("name", name), known)


def describe(folder: str | Path) -> dict[str, Any]:
    """Return what is not secret in a folder of keys; raises `ConfigError`."""
    found: dict[str, Any] = key_files.describe(Path(folder))
    return found


def grant_of(
    name: str,
    key: str,
    *,
    publish: Sequence[str] = ("**",),
    subscribe: Sequence[str] = ("**",),
    stats: bool = True,
    operate: bool = False,
) -> Grant:
    """Return what a public key may do, to be given to `allow`; raises `ConfigError`."""
    return Grant(
        check_grant_name("name", name),
        parse_public_key("KEY", key),
        check_patterns("publish", list(publish)),
        check_patterns("subscribe", list(subscribe)),
        stats,
        operate,
    )


def allow(folder: str | Path, grant: Grant) -> bool:
    """Let a public key in, or change what it may do; returns whether it is new on the list."""
    return key_files.allow(Path(folder), grant)


def revoke(folder: str | Path, who: str) -> list[Grant]:
    """Take a name or a public key off the allow-list: running peers cut it off."""
    return key_files.revoke(Path(folder), who)


def own_name(security: Security | None) -> str:
    """Return what the allow-list calls the holder of these keys; empty where it does not."""
    if security is None or security.key_dir is None:
        return ""
    return Keyring(security).own_name()


def read_private(path: str | Path) -> str:
    """Return the text of a file that nobody but its owner may read; raises `ConfigError`."""
    try:
        return read_own(path, 0o077, "read it: chmod 600", KEY_FILE_BYTES_MAX).decode()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(str(path), "is not UTF-8 text") from None
