"""The programs of examples/market_data: each in a process of its own, and all agree at the end."""

from __future__ import annotations

import ast
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import processes
from tests.support.ports import free_port

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples" / "market_data"
FILES = sorted(FOLDER.glob("*.py"))
LINES_MAX = 80
PATIENCE_S = 90.0

Start = Callable[..., "Program"]


class Program:
    """A program, and the file that it writes to."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self._log = folder / f"{name}.log"
        with self._log.open("w") as out:
            self.process = processes.start(
                [sys.executable, "-u", *command], stdout=out, stderr=out, cwd=folder
            )

    @property
    def text(self) -> str:
        return self._log.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, self.text
            assert self.process.poll() in (None, 0), self.text
            time.sleep(0.05)
        return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Program] = []

    def start_one(name: str, program: str, *more: str) -> Program:
        command = ["-m", "meshmsg"] if program == "meshmsg" else [str(FOLDER / program)]
        started.append(Program(tmp_path, name, *command, *more))
        return started[-1]

    yield start_one
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait()


@pytest.mark.timeout(300)
def test_each_in_its_own_terminal(start: Start, tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    net = f"239.255.{random.randint(1, 254)}"
    to = ("--connect", address)
    exchange = start(
        "exchange", "exchange.py", "--bind", address, "--net", net, "--seconds", "3",
        "--rate", "500", "--stocks", "20", "--stay", "120",
    )  # fmt: skip
    exchange.wait_for("the exchange is at")
    alice = start("alice", "feed_handler.py", "alice", *to, "--drop", "0.1", "--slow", "0.0005")
    desk = [start(f"risk{n}", "risk.py", str(n), *to, "--patience", "8") for n in (1, 2)]
    bars = start("bars", "bars.py", *to, "--patience", "8")
    serve, lines = f"127.0.0.1:{free_port()}", [f"{net}.9:30721", f"{net}.10:30723"]
    both = [option for line in lines for option in ("--line", line)]
    start("gateway", "meshmsg", "moldudp", "send", "feed.**", *to, *both, "--serve", serve)
    mold = start("mold", "mold_handler.py", *both, "--server", serve, "--drop", "0.1")
    alice.wait_for(r"\d+ messages, \d+ orders rest|closed:")
    alice.process.send_signal(signal.SIGKILL)
    alice.process.wait()
    again = start("alice again", "feed_handler.py", "alice", *to)
    late = start("late", "feed_handler.py", "late", *to)
    closed = r"closed: (\d+) messages, books ([0-9a-f]{16})"
    truth = exchange.wait_for(closed).groups()
    for handler in (again, late, mold):
        assert handler.wait_for(closed).groups() == truth, handler.text
    if (tmp_path / "alice-data" / "books").exists():
        assert "alice goes on behind message" in again.text
    made = exchange.wait_for(r"(\d+) one-second bars")
    assert bars.wait_for(r"(\d+) bars from")[1] == made[1]
    handled = [int(member.wait_for(r"(\d+) orders handled")[1]) for member in desk]
    orders = re.findall(r"'orders.new': (\d+)", exchange.text)
    assert sum(handled) >= int(orders[-1])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_program_is_short_and_starts_with_main(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LINES_MAX
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    first = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert first.name == "main"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_program_is_in_the_page(path: Path) -> None:
    page = FOLDER.parent.parent / "docs" / "market-data.md"
    assert path.name in page.read_text(encoding="utf-8")


def test_help_needs_no_exchange() -> None:
    for path in FILES:
        done = subprocess.run(
            [sys.executable, str(path), "--help"],
            capture_output=True,
            timeout=60,
            env=os.environ,
            check=False,
        )
        assert done.returncode == 0, done.stderr
