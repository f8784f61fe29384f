"""SIGTERM ends a service and a verb in order: what they accepted reaches who reads it."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import processes
from tests.support.remote import RemoteError, RemotePeer
from tests.support.waiting import wait_until

#: Longer than an error waits for subscribers, and far shorter than `close` does here.
LOOK_S = 1.0
TUNING = {"close_timeout_s": 60.0}


def received(sub: RemotePeer, least: int) -> list[int]:
    """The numbers of all events that have come, and so many have to."""
    sub.use("readers")
    found: list[int] = sub.eval(f"read_all(events, {least})")
    return found


@pytest.fixture
def sub() -> Iterator[RemotePeer]:
    with RemotePeer("sub") as remote:
        remote.run("events = peer.subscribe('a.**')")
        yield remote


def test_a_service_with_the_one_line_hands_over_what_it_accepted(sub: RemotePeer) -> None:
    streams = [{"topics": "a.**", "buffer_bytes": "1MB"}]
    with RemotePeer("host", streams=streams, connect=sub.address, tuning=TUNING) as host:
        host.use("loads")
        host.run("import signal, sys; accepted = []")
        host.run("signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))")
        host.run("peer.wait_for_subscribers('a.b', timeout=30)")
        sub.stop()
        host.send("publish_until_told(accepted)")
        with pytest.raises(RemoteError, match="did not answer"):  # the subscriber blocks it by now
            host.answer(LOOK_S)
        host.signal(signal.SIGTERM)
        with pytest.raises(RemoteError, match="did not answer"):  # it drains
            host.answer(LOOK_S)
        sub.go_on()
        with pytest.raises(RemoteError, match="SystemExit: 143"):
            host.answer()
        accepted = host.eval("len(accepted)")
    assert accepted > 500
    numbers = received(sub, accepted)
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= accepted
    assert sub.eval("events.lost") == 0


@contextmanager
def publishing(sub: RemotePeer, folder: Path, close_timeout_s: float) -> Iterator[Any]:
    """`meshmsg pub`, of which the subscriber has received one event and was stopped then."""
    config = folder / "mesh.toml"
    config.write_text(
        f'[peer]\nname = "pub"\nconnect = "{sub.address}"\n'
        f"[peer.tuning]\nclose_timeout_s = {close_timeout_s}\n"
    )
    pub = processes.start(
        [sys.executable, "-m", "meshmsg", "pub", "a.b", "--config", str(config)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert pub.stdin is not None
    pub.stdin.write("first\n")
    pub.stdin.flush()
    assert sub.eval("events.get(30).position.seq") == 0
    sub.stop()
    pub.stdin.write("more\n" * 50)
    pub.stdin.flush()
    pipe, unread = pub.stdin.fileno(), bytearray(4)
    wait_until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, unread) == 0 and not any(unread))
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for further lines
        pub.wait(LOOK_S)
    yield pub


def test_pub_hands_over_what_it_published(sub: RemotePeer, tmp_path: Path) -> None:
    with publishing(sub, tmp_path, 60.0) as pub:
        pub.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            pub.wait(LOOK_S)
        sub.go_on()
        assert pub.wait(60) == 143
        assert received(sub, 50) == list(range(1, 51))


def test_what_a_verb_could_not_hand_over_is_said(sub: RemotePeer, tmp_path: Path) -> None:
    with publishing(sub, tmp_path, 0.5) as pub:
        pub.send_signal(signal.SIGTERM)
        assert pub.wait(60) == 143
        assert "closed before these had received everything: sub" in pub.stderr.read()
        sub.go_on()
