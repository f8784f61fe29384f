"""Secrets for verbs: from a file or the environment, since every user sees a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from meshmsg import ConfigError
from meshmsg.cli._guard import complain
from meshmsg.keys import read_private

SecretFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="A file with the secret, which only its owner may read.",
    ),
]
SecretsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="A file with what posts are signed with, one secret a line, several while one is "
        "replaced.",
    ),
]


def warn_of_secret(context: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Say so where a secret stands on the command line; a callback of `--secret`."""
    source = context.get_parameter_source(param.name or "")
    if value and source is not None and source.name == "COMMANDLINE":
        others = "".join(f" or {name}" for name in _variables(param))
        text = "--secret is seen by everybody who lists processes, and will go"
        complain(f"{text}: use --secret-file{others}")
    return value


def _variables(param: typer.CallbackParam) -> list[str]:
    found = param.envvar or []
    return [found] if isinstance(found, str) else list(found)


def read_secrets(path: Path | None) -> list[str]:
    """The secrets of a file, one a line; none without a file.  Raises `ConfigError`."""
    if path is None:
        return []
    found = [line.strip() for line in read_private(path).splitlines() if line.strip()]
    if not found:
        raise ConfigError(str(path), "is empty: write the secret into it")
    return found


def read_secret_or(path: Path | None, given: str | None) -> str | None:
    """The one secret of a file, or what was given; raises `ConfigError`."""
    found = read_secrets(path)
    if len(found) + (given is not None) > 1:
        raise ConfigError("secret", "give one secret, in one place")
    return found[0] if found else given
