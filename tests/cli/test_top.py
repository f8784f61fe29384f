"""`meshmsg top`: tables and keys, any size of terminal, hostile names, and a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from meshmsg import Peer, Stream
from meshmsg._overview.rows import (
    GroupRow,
    LogRow,
    LossRow,
    PeerRow,
    ProblemRow,
    StreamRow,
    SubscriberRow,
    Totals,
    View,
)
from meshmsg.cli._terminal_keys import keys_of
from meshmsg.cli._top_screen import FILTER_CHARS_MAX, TopScreen
from meshmsg.cli._top_tables import TABLES, short
from tests.support import processes
from tests.support.waiting import wait_until

FREE = "tcp://127.0.0.1:*"
HOSTILE = ["\x1b[2J\x07bell", "[bold red]x[/]", "日本語" * 20, "<script>", "\u202eevil", "e\u0301"]


def stream_row(name: str, **more: Any) -> StreamRow:
    given: dict[str, Any] = {
        "peer": "shop",
        "is_here": True,
        "overflow": "block",
        "transport": "zmq",
        **dict.fromkeys(("published", "behind", "subscribers", "groups", "buffer_bytes"), 0),
        **dict.fromkeys(("dropped", "lost"), 0),
        "published_s": 0.0,
        "bytes_s": 0.0,
        "blocked": False,
        "blocked_by": [],
    }
    return StreamRow(name, **(given | more))


def view_of(names: list[str]) -> View:
    """A mesh in which everything has these names."""
    totals = Totals(3, 1, 3, 1234.5, 1e6, 1e9, 7, 1, 5, 2, 9, 0)
    return View(
        peer="me",
        mesh="mesh",
        totals=totals,
        problems=[ProblemRow("bad", name, name, 1.0) for name in names],
        peers=[PeerRow(name, "here", False, [], "1", []) for name in names],
        links=[],
        flows=[],
        streams=[
            stream_row(name, published_s=float(at), blocked_by=[name])
            for at, name in enumerate(names)
        ],
        subscribers=[
            SubscriberRow(name, f"sub of {name}", "live", at, 1, 0.5, 0, 0, 0.0, 0.0)
            for at, name in enumerate(names)
        ],
        groups=[
            GroupRow(name, f"group of {name}", at, at, 0, 1, 0.5, 0, 0.0, 0, 0, [f"{name}/m"])
            for at, name in enumerate(names)
        ],
        senders=[],
        receivers=[],
        logs=[LogRow(name, name, 9, at, 7.5, name, problem=name) for at, name in enumerate(names)],
        losses=[LossRow(name, name, "gone", 3, 1, 4, 1.0) for name in names],
        ledger=[],
    )


def screen_of(names: list[str], *keys: str) -> TopScreen:
    screen = TopScreen()
    screen.take(view_of(names))
    for key in keys:
        screen.press(key)
    return screen


def lines_of(screen: TopScreen, width: int = 80, height: int = 24) -> list[str]:
    return screen.draw(width, height).plain.split("\n")


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60), (12, 5), (1, 1)])
@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_nothing_is_wider_or_higher_than_the_terminal(size: tuple[int, int], table: str) -> None:
    width, height = size
    screen = TopScreen(table=table)
    screen.take(view_of([*HOSTILE, *(f"stream {n}" for n in range(100))]))
    for keys in ((), ("down",) * 50, ("enter",), ("/", "x")):
        for key in keys:
            screen.press(key)
        lines = lines_of(screen, width, height)
        assert len(lines) <= max(2, height)
        assert max(map(cell_len, lines)) <= width


def test_names_of_others_are_text() -> None:
    for table in TABLES:
        screen = TopScreen(table=table.name)
        screen.take(view_of(HOSTILE))
        text = screen.draw(120, 40).plain
        assert "[bold red]x[/]" in text
        assert "<script>" in text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_columns_stand_below_each_other_whatever_the_names_are() -> None:
    _, _, head, *rows = lines_of(screen_of(HOSTILE))
    ends = {cell_len(row[: row.rindex("sub")]) for row in rows if "sub" in row}
    assert len(ends) <= 1
    wide = next(row for row in rows if "日本" in row)
    assert cell_len(head.rstrip()) <= 80 >= cell_len(wide)


def test_the_greatest_comes_first_and_s_and_r_change_that() -> None:
    screen = screen_of(["b", "a", "c"])
    first = lambda: lines_of(screen)[3].split()[0]  # noqa: E731
    assert first() == "c"
    screen.press("r")
    assert first() == "b"
    for _ in range(len(TABLES[0].columns) - 1):
        screen.press("s")
    screen.press("r")
    assert "stream▼" in lines_of(screen)[2]
    assert first() == "a"


def test_a_filter_is_typed_and_cleared() -> None:
    screen = screen_of(["orders", "quotes"], "/", *"qou", "backspace", "backspace", *"uo")
    assert lines_of(screen)[-1] == "/quo▏"
    screen.press("enter")
    assert [line.split()[0] for line in lines_of(screen)[3:4]] == ["quotes"]
    assert "orders" not in screen.draw(80, 24).plain
    screen.press("esc")
    assert "orders" in screen.draw(80, 24).plain
    screen = screen_of(["a"], "/", *"x" * 2 * FILTER_CHARS_MAX, "enter")
    assert lines_of(screen, 200)[-1].count("x") == FILTER_CHARS_MAX
    assert "nothing here that fits the filter" in screen.draw(80, 24).plain


def test_enter_goes_into_a_stream_and_esc_comes_back() -> None:
    screen = screen_of(["orders", "quotes"], "enter")
    lines = lines_of(screen)
    assert lines[1].endswith(" of quotes")
    assert [line.split()[2] for line in lines[3:5] if line.strip()] == ["quotes"]
    screen.press("tab")
    screen.press("esc")
    assert "orders" in screen.draw(80, 24).plain


def test_enter_shows_the_members_of_a_group() -> None:
    screen = screen_of(["orders"], "2", "enter")
    text = screen.draw(80, 24).plain
    assert "group of orders of orders" in text
    assert "member       orders/m" in text
    screen.take(view_of(["quotes"]))
    assert "it has gone" in screen.draw(80, 24).plain


def test_paused_it_shows_what_it_showed() -> None:
    screen = screen_of(["orders"], "p")
    screen.take(view_of(["quotes"]))
    assert "PAUSED" in lines_of(screen)[1]
    assert "orders" in screen.draw(80, 24).plain
    screen.press("p")
    screen.take(view_of(["quotes"]))
    assert "quotes" in screen.draw(80, 24).plain


def test_the_row_that_is_chosen_stays_in_sight() -> None:
    screen = screen_of([f"s{n:02}" for n in range(50)], *["down"] * 45)
    assert "s04" in screen.draw(80, 12).plain
    for _ in range(100):
        screen.press("up")
    assert "s49" in screen.draw(80, 12).plain


def test_before_the_first_look_and_with_an_empty_mesh() -> None:
    assert "looking" in TopScreen().draw(80, 24).plain
    for number in range(1, len(TABLES) + 1):
        assert "nothing here" in screen_of([], str(number), "enter", "down").draw(80, 24).plain


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("q/x", ["q", "/", "x"]),
        ("\x1b[A\x1bOB\x1b[5~\t\r", ["up", "down", "pageup", "tab", "enter"]),
        ("\x1b", ["esc"]),
        ("\x1b[200~\x1b[1;5C\x1b[", []),
        ("\x00\x7f\x03", ["backspace", "ctrl-c"]),
        ("é日", ["é", "日"]),
    ],
)
def test_keys_have_names(text: str, keys: list[str]) -> None:
    assert keys_of(text) == keys


@pytest.mark.parametrize("number", [0, 0.4, 9999, 10_000, 123456, 1e7, 1e11, 1e15, -2.5])
def test_numbers_are_short(number: float) -> None:
    assert len(short(number)) <= 6


# --- with peers ---


def mesh(path: Path) -> Peer:
    stream = Stream("jobs.**", groups="workers", durability="log")
    return Peer("shop", bind=FREE, streams=stream, data_dir=path)


def test_once_prints_the_mesh_for_scripts_and_for_people(tmp_path: Path, run: Any) -> None:
    with mesh(tmp_path) as shop:
        shop.publish_many("jobs.x", range(7))
        result = run("top", "--once", "--json", "-c", shop.address)
        assert result.exit_code == 0, result.stderr
        view = json.loads(result.stdout)
        assert view["totals"]["group_lag"] == 7
        assert [row["stream"] for row in view["streams"]] == ["shop/jobs.**", "shop/dead.workers"]
        result = run("top", "--once", "--table", "groups", "--filter", "work", "-c", shop.address)
        assert re.search(r"^workers +shop/jobs\.\*\* +7", result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "there is no terminal here: meshmsg top --once"),
        (("--json",), "goes with --once"),
        (("--table", "x", "--once"), "is not one of streams, groups"),
        (("--sort", "x", "--once"), "is not a column of streams"),
    ],
)
def test_wrong_usage_says_what_is_right(options: tuple[str, ...], problem: str, run: Any) -> None:
    result = run("top", *options, "-c", "tcp://127.0.0.1:1")
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


class Terminal:
    """`meshmsg top` in a terminal of its own."""

    def __init__(self, *arguments: str, size: tuple[int, int] = (80, 24)) -> None:
        ours, theirs = pty.openpty()
        self._fd = ours
        self.resize(*size)
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        environment = {**os.environ, "MESHMSG_DISCOVERY": "none", "TERM": "xterm-256color"}
        self.process = processes.start(
            [sys.executable, "-m", "meshmsg", "top", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
            # Its own, so that Ctrl-C is a signal as it is for people.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.text = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return
            self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode("utf-8", "replace"))

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def shows(self, *texts: str) -> None:
        wait_until(lambda: all(text in self.text for text in texts), 60)

    def press(self, keys: str) -> None:
        self.text = ""
        os.write(self._fd, keys.encode())

    def close(self) -> None:
        processes.end(self.process)
        os.close(self._theirs)
        os.close(self._fd)
        self._thread.join(60)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before


@pytest.mark.parametrize("end", ["q", "\x03"])
def test_in_a_real_terminal(tmp_path: Path, end: str) -> None:
    with mesh(tmp_path) as shop:
        terminal = Terminal("-c", shop.address)
        try:
            shop.publish_many("jobs.x", range(7))
            terminal.shows("1 streams 2 groups", "shop/jobs.**")
            terminal.press("2")
            terminal.shows("workers", "acked/s")
            terminal.press("\r")
            terminal.shows("workers of shop/jobs.**", "pending      7")
            terminal.resize(40, 10)
            terminal.press("\x1b")
            terminal.shows("workers", "lag▼")
            terminal.press(end)
            assert terminal.process.wait(60) == (0 if end == "q" else 130)
            assert terminal.is_as_before()
        finally:
            terminal.close()
