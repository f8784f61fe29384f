"""`meshmsg top`: the mesh in a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from meshmsg import ClosedError, Peer
from meshmsg._overview.look import MeshLook
from meshmsg._overview.mesh import MeshView
from meshmsg._overview.rows import View
from meshmsg.cli._found import looking, wait_for_found
from meshmsg.cli._guard import GOOD, guarded, usage
from meshmsg.cli._help import help_text
from meshmsg.cli._logs import LogLevel, write_logs
from meshmsg.cli._options import Connect, Find, Interface, Json, Mesh, seconds
from meshmsg.cli._values import to_json

if TYPE_CHECKING:
    from meshmsg.cli._top_screen import TopScreen

HELP = help_text(
    "The mesh, live: peers, streams, rates, lag, who blocks, losses; of all peers that are found, "
    "or can be reached from those in --connect.",
    "Keys: tab or 1-6 choose the table, arrows a row, enter goes into a stream or a group and esc "
    "back; s sorts by the next column, r the other way round, / filters, p pauses, q quits.",
    examples=(
        "meshmsg top",
        "meshmsg top -c tcp://127.0.0.1:7000 --table groups --sort lag",
        "meshmsg top --filter orders",
        "meshmsg top --once --json -c tcp://127.0.0.1:7000 | jq .totals",
    ),
)
#: How long nothing may be drawn: a terminal that was resized is noticed by then.
IDLE_S = 0.25


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("top", help=HELP, short_help="The mesh in a terminal.")(guarded(top))


def top(
    connect: Connect = None,
    mesh: Mesh = None,
    discovery: Find = None,
    interface: Interface = None,
    table: Annotated[
        str,
        typer.Option(help="streams, groups, subscribers, peers, logs, losses or problems."),
    ] = "streams",
    sort: Annotated[
        str, typer.Option(metavar="COLUMN", show_default=False, help="Sort by this column.")
    ] = "",
    wanted: Annotated[
        str,
        typer.Option("--filter", metavar="TEXT", show_default=False, help="Only rows with this."),
    ] = "",
    once: Annotated[
        bool, typer.Option("--once", help="Print what there is, with rates over a second, and end.")
    ] = False,
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="With --once: how long to look for peers at most.")
    ] = "3s",
    json: Json = False,
) -> int:
    """See `HELP`."""
    from meshmsg.cli._top_screen import TopScreen  # draws with rich
    from meshmsg.cli._top_tables import TABLES

    known = {one.name: [column.name for column in one.columns] for one in TABLES}
    if table not in known:
        raise usage("--table", f"{table!r} is not one of {', '.join(known)}")
    if sort and sort not in known[table]:
        raise usage("--sort", f"{sort!r} is not a column of {table}: {', '.join(known[table])}")
    if json and not once:
        raise usage("--json", "goes with --once: meshmsg top --once --json")
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise usage("--once", "there is no terminal here: meshmsg top --once, with --json or not")
    screen = TopScreen(table=table, sort=sort, wanted=wanted)
    wait_s = seconds("--wait", wait)
    with looking(connect, mesh, discovery, interface) as peer:
        if once:
            wait_for_found(peer, wait_s)
            return _show_once(_two_looks(peer), screen, json=json)
        return _run(peer, screen)


def _two_looks(peer: Peer) -> View:
    """The mesh, with rates."""
    look, view = MeshLook(peer), MeshView()
    try:
        view.take(look.look(), now=time.monotonic())
        time.sleep(look.pause_s)
        return view.take(look.look(), now=time.monotonic())
    finally:
        look.close()


def _show_once(view: View, screen: TopScreen, *, json: bool) -> int:
    if json:
        print(to_json(msgspec.to_builtins(view)))
        return GOOD
    from meshmsg.cli._tables import console

    out = console()
    screen.take(view)
    for line in screen.lines(out.width):
        out.print(line, no_wrap=True, crop=True)
    return GOOD


class _Looks:
    """Looks at the mesh on a thread of its own; hands over each view once."""

    def __init__(self, peer: Peer) -> None:
        self._look, self._mesh = MeshLook(peer), MeshView()
        self._views: deque[View] = deque(maxlen=1)
        self._stopping = threading.Event()
        self.problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="meshmsg-top", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._views.append(self._mesh.take(self._look.look(), now=time.monotonic()))
                self._stopping.wait(self._look.pause_s)
        except ClosedError:  # the peer, at the end
            return
        except Exception as error:  # told where it is seen: this thread has no terminal
            self.problem = error

    def newest(self) -> View | None:
        """A view that was not taken before; raises what ended the looking."""
        if self.problem is not None:
            raise self.problem
        return self._views.popleft() if self._views else None

    def close(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._look.close()


def _run(peer: Peer, screen: TopScreen) -> int:
    """Draw until somebody quits."""
    from rich.console import Console
    from rich.live import Live

    from meshmsg.cli._terminal_keys import keys_at_once, pressed

    write_logs(LogLevel.off)  # lines of others have no place on this screen
    out = Console(highlight=False, emoji=False, markup=False)
    looks = _Looks(peer)
    try:
        with keys_at_once(), Live(console=out, screen=True, auto_refresh=False) as live:
            while not screen.is_over:
                view = looks.newest()
                if view is not None:
                    screen.take(view)
                live.update(screen.draw(*out.size), refresh=True)
                for key in pressed(IDLE_S):
                    screen.press(key)
    finally:
        looks.close()
    return GOOD
