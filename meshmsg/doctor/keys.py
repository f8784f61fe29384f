"""Check of the keys that a peer started here would take part with."""

from __future__ import annotations

import os
from collections.abc import Iterator

from meshmsg._access.keyring import Keyring
from meshmsg._model.errors import ConfigError
from meshmsg._model.security_config import Security
from meshmsg.doctor.findings import FAIL, OK, SKIP, WARN, Finding
from meshmsg.transports.discovery.addresses import is_loopback


def keys(interface: str) -> Iterator[Finding]:
    """Whether there are any, and whether they can be used."""
    try:
        security = Security.from_env(os.environ)
        keyring = None if security is None else Keyring(security)
    except ConfigError as error:
        yield Finding("keys", FAIL, str(error), "see `meshmsg keys --help`")
        return
    if security is None or keyring is None:
        text = "none: whoever can reach the ports of a peer takes part"
        fix = "meshmsg keys new DIR, then meshmsg --keys DIR (docs/security.md)"
        yield Finding("keys", SKIP if is_loopback(interface) else WARN, text, fix)
    elif not keyring.apart:
        yield Finding("keys", OK, "a mesh key: everyone who has it may do all")
    else:
        name = keyring.own_name()
        text = f"{security.key_dir}: {len(keyring.grants)} peers are allowed"
        if name:
            yield Finding("keys", OK, f"{text}, this one as {name!r}")
        else:
            fix = "put it on the allow-list of the others, if it is not"
            yield Finding("keys", OK, f"{text}; this one is not among them here", fix)
