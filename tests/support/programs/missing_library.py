"""A program that lacks a library and uses what needs it.

    python tests/support/programs/missing_library.py LIBRARY USE...

Prints the error of each use, a line each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from meshmsg import ConfigError, Peer


def registry() -> None:
    from meshmsg.webhooks import WebhookRegistry

    WebhookRegistry("x")


def webhooks() -> None:
    from meshmsg.webhooks import WebhookServer

    WebhookServer(Peer("x"), topic="a", scheme="none")


def server() -> None:
    from meshmsg.statsd import StatsdServer

    StatsdServer(Peer("x"))


def reporter() -> None:
    from meshmsg.statsd import StatsdReporter

    StatsdReporter(Peer("x"))


def nanomsg() -> None:
    from meshmsg.nanomsg import NanomsgIn

    NanomsgIn(Peer("x"), "y")


def monitor() -> None:
    Peer("x", monitor="127.0.0.1:0").open()


def otel() -> None:
    Peer("x", otel=True).open()


USES: dict[str, Callable[[], None]] = {
    use.__name__: use for use in (registry, webhooks, server, reporter, nanomsg, monitor, otel)
}


def main() -> None:
    library, *uses = sys.argv[1:]
    sys.modules[library] = None  # type: ignore[assignment]  # which is how Python marks it
    for use in uses:
        try:
            USES[use]()
        except ConfigError as error:
            print(error)


if __name__ == "__main__":
    main()
