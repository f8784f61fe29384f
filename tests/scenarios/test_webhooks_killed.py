"""Webhooks through SIGKILL of sender and receiver: at least once, in order, with stable ids."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer, Stream
from meshmsg.webhooks import WebhookRegistry
from tests.support import processes
from tests.support.ports import free_port
from tests.support.waiting import wait_until

EVENTS = 60
ROOT = Path(__file__).resolve().parent.parent.parent


def receiver(port: int, taken: Path, secret: str) -> subprocess.Popen[bytes]:
    hooks = ROOT / "tests" / "support" / "hooks.py"
    program = [sys.executable, str(hooks), str(port), str(taken), secret]
    return processes.start(program)


def sender(folder: Path, address: str) -> subprocess.Popen[bytes]:
    arguments = ["webhook", "run", "--data-dir", str(folder), "--connect", address, "--quiet"]
    return processes.start([sys.executable, "-m", "meshmsg", "--log", "off", *arguments])


def lines(path: Path) -> list[list[str]]:
    """Id and data of each message taken; a line torn by a kill is left out."""
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text.splitlines() if len(line.split()) == 2]


@pytest.mark.timeout(600)
def test_every_event_comes_in_order_through_kills_of_both_sides(tmp_path: Path) -> None:
    port, taken, folder = free_port(), tmp_path / "taken", tmp_path / "hooks"
    with WebhookRegistry(folder) as registry:
        # Patient enough for a server that takes a minute to start, on a machine that is busy.
        schedule = [0, *[0.1] * 20, *[1.0] * 79]
        options: dict[str, Any] = {"order": "all", "name": "hook", "schedule": schedule}
        url = f"http://127.0.0.1:{port}/"
        endpoint = registry.add(url, "orders.**", allow="127.0.0.1", timeout=5, **options)
    secret = endpoint.secrets[0].text
    orders = Stream("orders.**", durability="log")
    running: list[subprocess.Popen[bytes]] = []
    with Peer("shop", streams=[orders], data_dir=tmp_path / "shop") as shop:
        try:
            running = [receiver(port, taken, secret), sender(folder, shop.address)]
            for part in range(2):
                first = part * EVENTS // 2
                for n in range(first, first + EVENTS // 2):
                    shop.publish("orders.eu", n)
                # In the middle of this part one of the two is killed, and started again.
                wait_until(lambda at=first: len(lines(taken)) > at + 5, 120, "some")
                which = part % 2
                running[which].kill()
                running[which].wait()
                running[which] = (
                    sender(folder, shop.address) if which else receiver(port, taken, secret)
                )
            wait_until(lambda: len({x for x, _ in lines(taken)}) == EVENTS, 120, "all of them")
        finally:
            for process in running:
                process.kill()
                process.wait()
    once = list(dict.fromkeys((ident, data) for ident, data in lines(taken)))
    assert [int(data) for _, data in once] == list(range(EVENTS)), "in order, each id one event"
    with WebhookRegistry(folder) as registry:
        assert registry.ledger().reconciles
