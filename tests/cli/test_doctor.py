"""`meshmsg doctor` and `meshmsg peers` without addresses: what is found, and what mends it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshmsg import Peer, PeerConfig, PublishTimeout, Security, Stream, Tuning
from meshmsg.doctor import FAIL, OK, SKIP, WARN, Finding, machine, mesh
from meshmsg.doctor.findings import examine
from meshmsg.doctor.keys import keys
from tests.support.netns import Network, needs_namespaces
from tests.support.waiting import wait_until

MESH = f"doctor-test-{os.getpid()}"


def doctor(run: Any, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit status and findings, by check (the last of each)."""
    result = run("doctor", "--json", "--mesh", MESH, *arguments)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return result.exit_code, {finding["check"]: finding for finding in found}


def test_well_on_loopback(run: Any, tmp_path: Path) -> None:
    status, found = doctor(run, "--data-dir", str(tmp_path), "--discovery", "auto", "--wait", "1s")
    assert status == 0, found
    for check in ("software", "interface", "mtu", "multicast", "disk space", "disk fsync", "mdns"):
        assert found[check]["status"] in (OK, WARN), found[check]
    assert found["mdns"]["status"] == OK
    assert found["discovery"]["status"] == SKIP
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


def test_people_get_lines_with_marks(run: Any) -> None:
    result = run("doctor", "--discovery", "none")
    assert result.exit_code == 0, result.stdout
    assert "software" in result.stdout
    assert "nothing is in the way" in result.stdout


def test_named_peer_is_looked_at_closely(run: Any) -> None:
    with Peer("exchange", mesh=MESH, streams=[Stream("quotes.**")]) as peer:
        status, found = doctor(run, "--connect", peer.address, "--discovery", "none")
        assert status == 0, found
        assert "exchange" in found["discovery"]["found"]
        assert "control and data port" in found["ports"]["found"]
        assert found["protocol"]["found"].endswith("protocol 2")
        assert found["clock"]["status"] == OK
        assert "ms (within" in found["clock"]["found"]


@pytest.mark.parametrize("secured", [False, True])
def test_looking_leaves_no_alarms_behind(
    run: Any, monkeypatch: pytest.MonkeyPatch, secured: bool
) -> None:
    security = None
    if secured:
        mesh_key = secrets.token_urlsafe(32)
        security = Security(mesh_key=mesh_key)
        monkeypatch.setenv("MESHMSG_MESH_KEY", mesh_key)
    settings: dict[str, Any] = {"mesh": MESH, "security": security, "discovery": "zeroconf"}
    with Peer("exchange", streams=[Stream("quotes.**")], **settings) as peer:
        for _ in range(2):
            status, found = doctor(run, "--connect", peer.address, "--discovery", "auto")
            assert status == 0, found
            assert "control and data port" in found["ports"]["found"]
            assert found["streams"]["status"] == OK
        counts = {**peer.stats()["counters"], **peer.stats()["security"]}
        alarms = {k: v for k, v in counts.items() if "strange" in k or k == "handshakes_failed"}
        assert not any(alarms.values()), alarms


def test_blocked_streams_and_losses_are_told(run: Any) -> None:
    streams = [
        Stream("slow.**", overflow="block", window_bytes="64KiB"),
        Stream("lossy.**", overflow="drop_oldest", buffer_bytes="64KiB"),
    ]
    stalled = Tuning(inbox_bytes_max=64 * 1024, queue_frames=4)
    with (
        Peer("exchange", mesh=MESH, streams=streams, tuning=stalled) as peer,
        Peer("desk", mesh=MESH, connect=peer.address, tuning=stalled) as desk,
        desk.subscribe("**") as events,
    ):
        peer.wait_for_subscribers("slow.a", timeout=60)
        publish_until_blocked(peer, "slow.a")
        status, found = doctor(run, "--connect", peer.address, "--discovery", "none")
        assert status == 1
        assert found["blocked"]["status"] == FAIL
        assert "slow.** is blocked for" in found["blocked"]["found"]
        assert "desk/" in found["blocked"]["found"]
        for _ in range(2000):
            peer.publish("lossy.a", bytes(10_000))
        while not desk.stats()["subscriptions"][0]["sources"] or not events.losses:
            assert events.get(timeout=60) is not None
        wait_until(lambda: any(s["lost"] for s in subscribers(peer, "lossy.**")))
        status, found = doctor(run, "--connect", peer.address, "--discovery", "none")
        assert "desk/" in found["lost"]["found"]
        assert "overflow" in found["lost"]["found"]


def test_receiver_that_packets_do_not_reach_is_told() -> None:
    stream = {"blocked": False, "subscribers": [], "multicast": {"unreached": ["desk/-#1"]}}
    answer = {"streams": {"a.**": stream}, "subscriptions": []}
    (found,) = mesh._streams(answer, "exchange")
    assert found.status == FAIL
    assert "packets of a.** do not reach desk/-#1" in found.found


def publish_until_blocked(peer: Peer, topic: str) -> None:
    with contextlib.suppress(PublishTimeout):
        while True:
            peer.publish(topic, bytes(10_000), timeout=2)


def subscribers(peer: Peer, label: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = peer.stats()["streams"][label]["subscribers"]
    return found


def test_keys_are_looked_at_and_their_want_is_named(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mesh_key = secrets.token_urlsafe(32)
    with Peer("exchange", mesh=MESH, security=Security(mesh_key=mesh_key)) as peer:
        status, found = doctor(run, "--connect", peer.address, "--discovery", "none")
        assert status == 1
        assert found["keys"]["status"] == SKIP
        assert "one side has a key" in found["protocol"]["found"]
        assert "--keys DIR" in found["protocol"]["fix"]
    monkeypatch.setenv("MESHMSG_MESH_KEY_FILE", str(tmp_path / "nothing"))
    (finding,) = keys("127.0.0.1")
    assert (finding.status, "cannot be read" in finding.found) == (FAIL, True)
    monkeypatch.delenv("MESHMSG_MESH_KEY_FILE")
    monkeypatch.setenv("MESHMSG_MESH_KEY", mesh_key)
    assert [finding.status for finding in keys("127.0.0.1")] == [OK]


def test_nobody_at_the_address_fails_with_the_reason(run: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        status, found = doctor(run, "-c", address, "--discovery", "none", "--wait", "500ms")
    assert status == 1
    assert "connection refused" in found["ports"]["found"]
    assert found["ports"]["fix"]


def test_somebody_else_at_the_address_fails(run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        status, found = doctor(run, "-c", address, "--discovery", "none", "--wait", "500ms")
    assert status == 1
    assert "no peer answers" in found["protocol"]["found"]


def test_another_mesh_is_named(run: Any) -> None:
    with Peer("other", mesh=f"{MESH}-other") as peer:
        status, found = doctor(run, "-c", peer.address, "--discovery", "none", "--wait", "1s")
    assert status == 1
    assert "meets mesh" in found["protocol"]["found"]
    assert found["protocol"]["fix"] == "give both the same --mesh"


@pytest.mark.parametrize(
    ("why", "status", "words"),
    [
        ("the name 'alpha' is in use at tcp://127.0.0.1:1 already", FAIL, "name of its own"),
        ("no route to host", WARN, "firewall"),
    ],
)
def test_contact_that_is_no_peer_of_ours_is_explained(why: str, status: str, words: str) -> None:
    found = {"peer": "alpha", "sources": ["gossip"], "reason": why, "state": "refused"}
    contact = found | {"reasons": {"tcp://127.0.0.1:2": why}}
    tried = {"zeroconf": {"state": "off", "reason": ""}, "gossip": True, "contacts": [contact]}
    figures = {"discovery": tried | {"elsewhere": [], "names": []}}
    peer: Any = SimpleNamespace(stats=lambda: figures, peers=list, config=PeerConfig("x"))
    *_, finding = mesh.discovery(peer, [])
    assert (finding.check, finding.status) == ("contact", status)
    assert words in finding.fix


def test_unknown_interface_fails_and_lists_those_there_are(run: Any) -> None:
    result = run("doctor", "--interface", "eth77", "--discovery", "none")
    assert result.exit_code == 1
    assert "'eth77' is no interface of this machine: it has lo" in result.stdout


def test_folder_that_is_not_there(run: Any, tmp_path: Path) -> None:
    status, found = doctor(run, "--data-dir", str(tmp_path / "none"), "--discovery", "none")
    assert status == 1
    assert found["disk"]["fix"].startswith("mkdir -p")


def test_spark_where_it_is_needed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.util, "find_spec", lambda name: None)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    status, found = doctor(run, "--spark", "--discovery", "none")
    assert status == 1
    assert (found["pyspark"]["status"], found["java"]["status"]) == (FAIL, FAIL)
    assert found["pyspark"]["fix"] == "pip install 'meshmsg[spark]'"


def test_small_buffers_little_space_and_few_files_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "granted_buffers", lambda wanted: (212_992, 212_992))
    (finding,) = machine.buffers()
    assert finding.status == WARN
    assert "net.core.rmem_max" in finding.fix
    usage = (10**12, 10**12, 50_000_000)
    monkeypatch.setattr(
        machine.shutil,
        "disk_usage",
        lambda _: type("U", (), dict(zip(("total", "used", "free"), usage, strict=True))),
    )
    assert next(machine.disk(tmp_path)).status == FAIL
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (256, 4096))
    (finding,) = machine.open_files(128)
    assert (finding.status, finding.fix.split(",")[0]) == (WARN, "ulimit -n 1024")


def test_clock_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with Peer("late", mesh=MESH) as late, Peer("here", mesh=MESH, connect=late.address) as here:
        here.wait_for_peers(timeout=30)
        node = here._open_node()
        (link,) = node.links.table.up()
        real = node.questions.ask
        for off_s, status in ((0.0, OK), (-3.0, WARN), (3600.0, FAIL)):

            def ask(*question: Any, off_s: float = off_s) -> Any:
                return {"time_ns": real(*question)["time_ns"] + int(off_s * 1e9)}

            monkeypatch.setattr(node.questions, "ask", ask)
            assert mesh._clock(here, link, "late").status == status


def test_check_that_breaks_down_is_a_finding() -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("a", OK, "so far")
        raise KeyError("oops")

    found = list(examine("broken", broken))
    assert [finding.status for finding in found] == [OK, FAIL]
    assert "oops" in found[1].found
    assert Finding("a", OK, "b").as_dict()["fix"] == ""


@needs_namespaces()
def test_network_without_multicast_is_found_out(start: Any) -> None:
    with Network(["here", "there"]) as net:
        host = net["here"]
        # What comes in from the machine itself is dropped, too.
        host.run("nft", "add", "table", "inet", "block")
        host.run("nft", "add chain inet block in { type filter hook input priority 0; }")
        host.run("nft", "add rule inet block in ip daddr 224.0.0.0/4 drop")
        with command_within(host.command):
            running = start(
                "doctor", "--json", "-i", host.address, "--wait", "500ms", "--discovery", "auto"
            )
            assert running.end() == 1
    found = {finding["check"]: finding for finding in running.objects()}
    assert found["multicast"]["status"] == FAIL
    assert "not received" in found["multicast"]["found"]
    assert found["mdns"]["status"] == FAIL
    assert "seeds=" in found["mdns"]["fix"]


@contextmanager
def command_within(within: list[str]) -> Iterator[None]:
    """Commands that are started run in a namespace."""
    from tests.cli import conftest

    real = conftest.subprocess.Popen

    def started(command: list[str], **options: Any) -> Any:
        return real([*within, *command], **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conftest.subprocess, "Popen", started)
        yield


# `meshmsg peers` without addresses -------------------------------------------------------------


def test_peers_that_are_found_are_listed(run: Any) -> None:
    mesh = f"{MESH}-list"
    with (
        Peer("exchange", mesh=mesh, discovery="zeroconf", streams=[Stream("quotes.**")]),
        Peer("desk", mesh=mesh, discovery="zeroconf") as desk,
        desk.subscribe("quotes.**"),
        desk.subscribe("quotes.**", group="workers"),
    ):
        desk.wait_for_peers(1, timeout=30)
        look = ("peers", "--mesh", mesh, "--discovery", "auto", "--wait", "20s")
        result = run(*look)
        assert result.exit_code == 0, result.stderr
        assert "exchange" in result.stdout
        assert "quotes.**" in result.stdout
        found = {x["name"]: x for x in map(json.loads, run(*look, "--json").stdout.splitlines())}
        assert set(found) == {"exchange", "desk"}
        assert found["desk"]["groups"] == ["workers"]
        assert found["exchange"]["roles"] == ["publisher"]
        figures = run(*look, "--figures", "--json").stdout.splitlines()
        assert {json.loads(line)["peer"] for line in figures} == {"exchange", "desk"}


def test_nobody_there_is_a_failed_check(run: Any) -> None:
    result = run("peers", "--mesh", f"{MESH}-none", "--discovery", "auto", "--wait", "500ms")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "no peer of mesh" in result.stderr
    assert "meshmsg doctor" in result.stderr


def test_watch_shows_who_comes_and_goes(start: Any) -> None:
    with Peer("hub", mesh=MESH, discovery="gossip") as hub:
        watch = start("peers", "--watch", "--json", "--mesh", MESH, "-c", hub.address)
        watch.wait_for_line('"change": ?"joined".*"name": ?"hub"')
        with Peer("guest", mesh=MESH, discovery="gossip", connect=hub.address):
            pass
    # Its good-bye may be cut off on a busy machine: then it is found to be lost.
    watch.wait_for_line('"change": ?"(left|lost)".*"name": ?"hub"')
    watch.interrupt()
    assert watch.end() == 130


def test_pub_and_sub_find_each_other_without_an_address(start: Any) -> None:
    mesh = f"{MESH}-pair"
    env = {"MESHMSG_DISCOVERY": "auto", "MESHMSG_MESH": mesh}
    sub = start("sub", "greetings.**", "--count", "1", env=env)
    pub = start("pub", "greetings.world", "hello", "--wait-timeout", "60s", env=env)
    assert pub.end() == 0, pub.errors()
    assert sub.end() == 0, sub.errors()
    assert "hello" in sub.out[0]
