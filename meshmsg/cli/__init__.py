"""The command `meshmsg`: one file per verb, and what they share in files with an underscore.

Standard output is for data, standard error for words about it.  The exit status is 0 when all is
well, 1 for loss or a failed check, 2 for wrong usage, 130 after Ctrl-C.

Modules import only what every verb needs at the top; rich, subprocess and their like are imported
by the function that uses them, so that `meshmsg pub` in a loop does not pay for them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, NoReturn

import typer

from meshmsg.cli import (
    bench,
    cursor,
    demo,
    doctor,
    drain,
    evict,
    group,
    keys,
    ledger,
    log,
    moldudp,
    nng,
    peers,
    pub,
    record,
    replay,
    sink,
    statsd,
    sub,
    top,
    trace,
    web,
    webhook,
)
from meshmsg.cli._guard import INTERRUPTED, TERMINATED
from meshmsg.cli._help import help_text
from meshmsg.cli._logs import LogFormat, LogLevel, write_logs

HELP = help_text(
    "Messages between processes, with no server in the middle and no silent loss.",
    "Each address option has an environment variable: MESHMSG_BIND and MESHMSG_CONNECT (several "
    "addresses with spaces between). Exit status: 0 good, 1 loss or a failed check, 2 wrong usage, "
    "130 after Ctrl-C, 143 after SIGTERM.",
    examples=(
        "meshmsg sub 'greetings.**' --bind tcp://127.0.0.1:7000",
        "meshmsg pub greetings.world hello --connect tcp://127.0.0.1:7000",
        "meshmsg pub --help           # options and examples of a verb",
    ),
)

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from meshmsg import COMPILED, __version__

        print(f"meshmsg {__version__}" + ("" if COMPILED else " (pure Python)"))
        raise typer.Exit


@app.callback()
def _before_each_verb(
    log: Annotated[
        LogLevel,
        typer.Option(
            envvar="MESHMSG_LOG",
            metavar="LEVEL",
            help="The library's own messages to show: debug, info, warning, error or off.",
            case_sensitive=False,
        ),
    ] = LogLevel.warning,
    log_format: Annotated[
        LogFormat,
        typer.Option(
            envvar="MESHMSG_LOG_FORMAT",
            metavar="FORMAT",
            help="How to show them: text, or json with one object a line.",
            case_sensitive=False,
        ),
    ] = LogFormat.text,
    keys: Annotated[
        str | None,
        typer.Option(
            envvar="MESHMSG_KEYS",
            metavar="DIR",
            show_default=False,
            help="Take part with the keys in this folder: see `meshmsg keys`.",
        ),
    ] = None,
    mesh_key_file: Annotated[
        str | None,
        typer.Option(
            envvar="MESHMSG_MESH_KEY_FILE",
            metavar="FILE",
            show_default=False,
            help="Take part with the mesh key in this file.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    write_logs(log, log_format)
    # Peers of this process and of those that it starts find them there.
    for name, value in (("MESHMSG_KEYS", keys), ("MESHMSG_MESH_KEY_FILE", mesh_key_file)):
        if value:
            os.environ[name] = value


_VERBS = (
    pub,
    sub,
    ledger,
    peers,
    top,
    trace,
    web,
    doctor,
    keys,
    log,
    record,
    replay,
    group,
    cursor,
    evict,
    drain,
    sink,
    statsd,
    webhook,
    nng,
    moldudp,
    bench,
    demo,
)
for _verb in _VERBS:
    _verb.register(app)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit status."""
    signal.signal(signal.SIGTERM, _on_terminate)
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app(args=arguments, prog_name="meshmsg")
    except KeyboardInterrupt:  # before or after the verb's own code
        sys.exit(INTERRUPTED)
    sys.exit(0)


def _on_terminate(number: int, frame: FrameType | None) -> None:
    """End as after Ctrl-C: blocks are left in order and the other peers hear a good-bye."""
    sys.exit(TERMINATED)
