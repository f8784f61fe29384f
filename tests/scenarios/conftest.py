"""What the scenarios share: the ledger, asked with the command that users have."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest


class LedgerCommand:
    """`meshmsg ledger` against running peers."""

    def __call__(
        self,
        *addresses: str,
        settle: float = 30.0,
        lost: bool = False,
        within: Sequence[str] = (),
    ) -> list[Any]:
        """Check that the books reconcile, and return the rows; `within` a network namespace."""
        connect = [part for address in addresses for part in ("--connect", address)]
        wait = ["--settle", str(settle)] if settle else []
        done = subprocess.run(
            [*within, sys.executable, "-m", "meshmsg", "ledger", *connect, *wait, "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"the ledger does not reconcile:\n{done.stdout}{done.stderr}"
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert rows, "the ledger is empty"
        for row in rows:
            assert row["reconciles"], row
            assert lost or not row["lost"], row
        return rows


@pytest.fixture
def ledger() -> LedgerCommand:
    return LedgerCommand()


class TcpProxy:
    """Stands between two sockets, and can cut what passes through it."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.down = False  # nobody is let through
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection at once; new ones are let through, unless it is `down`."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.down = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near:
            if self.down:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                return  # whoever dialled us tries again
            with far:
                with self._lock:
                    if self.down:
                        return
                    self._pairs.append((near, far))
                back = threading.Thread(target=self._copy, args=(far, near), daemon=True)
                back.start()
                self._copy(near, far)
                # Closed when nobody reads any more: a descriptor may be another connection's then.
                back.join()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def tcp_proxy() -> Any:
    @contextlib.contextmanager
    def proxied(target: str) -> Iterator[TcpProxy]:
        proxy = TcpProxy(target)
        try:
            yield proxy
        finally:
            proxy.close()

    return proxied
