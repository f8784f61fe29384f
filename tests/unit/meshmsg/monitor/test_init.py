"""A monitor that is opened: where it listens, for whom, and what it does without an address."""

from __future__ import annotations

import http.client
import logging
from pathlib import Path

import pytest

from meshmsg import BindError, ClosedError, ConfigError, Monitor, Peer
from meshmsg.monitor import MonitorServer, open_monitor, open_server
from meshmsg.monitor.parts import View

HERE = Monitor("127.0.0.1:0")


def get(server: MonitorServer, path: str, token: str = "") -> int:
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_it_listens_from_its_start_to_its_end() -> None:
    made = MonitorServer(HERE, "a")
    assert made.address == ("", 0)
    with made:
        assert made.address[0] == "127.0.0.1"
        assert get(made, "/health") == 200
        address = made.address
    made.close()  # again changes nothing
    with pytest.raises(ConnectionRefusedError):
        http.client.HTTPConnection(*address, timeout=60).connect()
    with pytest.raises(ClosedError):
        made.start()


def test_one_that_was_never_started_is_closed_all_the_same() -> None:
    MonitorServer(HERE, "a").close()


def test_beyond_this_machine_it_wants_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MESHMSG_MONITOR_TOKEN_FILE", raising=False)
    with pytest.raises(ConfigError, match="everybody there could read") as caught:
        MonitorServer(Monitor("0.0.0.0:0"), "a")
    assert caught.value.field == "monitor.token"
    path = tmp_path / "token"
    path.write_text("0123456789abcdef0123")
    path.chmod(0o600)
    with MonitorServer(Monitor("127.0.0.1:0", token_file=str(path)), "a") as made:
        assert get(made, "/metrics") == 401
        assert get(made, "/metrics", "0123456789abcdef0123") == 200


def test_a_part_that_is_added_is_shown_and_a_defect_of_it_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = []

    def part() -> View:
        looks.append(1)
        raise RuntimeError("a defect")

    with caplog.at_level(logging.CRITICAL), MonitorServer(HERE, "a") as made:
        made.add(part)
        assert get(made, "/stats") == 500
        assert get(made, "/health") in (200, 500)
    assert looks


def test_an_address_that_is_taken_is_an_error_only_where_it_is_required(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with MonitorServer(HERE, "a") as first:
        taken = "{}:{}".format(*first.address)
        with pytest.raises(BindError):
            open_server(Monitor(taken), "b")
        with caplog.at_level(logging.WARNING):
            assert open_server(Monitor(taken, required=False), "b") is None
    assert "b has no monitor" in caplog.text


def test_a_peer_has_one_only_if_it_is_asked_for() -> None:
    with Peer("plain") as peer:
        assert open_monitor(peer) is None
    with Peer("shown", monitor="127.0.0.1:0") as peer:
        assert isinstance(peer.monitor, MonitorServer)
        assert get(peer.monitor, "/ready") == 200
