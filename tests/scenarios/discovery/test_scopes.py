"""Who meets whom without being told: programs of one user and folder, and of one named mesh."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Peer
from meshmsg.testing import own_mesh
from tests.support import processes
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until


def within(folder: Path) -> list[str]:
    """Before a command: run in a folder, with nothing set."""
    folder.mkdir(exist_ok=True)
    return ["env", "-C", str(folder), "-u", "MESHMSG_MESH", "MESHMSG_DISCOVERY=auto"]


def remote(name: str, folder: Path, **arguments: Any) -> RemotePeer:
    """A peer in a process of its own that runs in a folder."""
    return RemotePeer(name, within=within(folder), **arguments)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "there"


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A `meshmsg` in a terminal of its own."""
    return processes.start(
        [*within(folder), sys.executable, "-m", "meshmsg", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def hears_of(peer: RemotePeer, *names: str) -> None:
    """Wait until a peer has heard that others are there, in whose folder it is not."""
    heard = "[x['peer'] for x in peer.stats()['discovery']['elsewhere']]"
    wait_until(lambda: set(names) <= set(peer.eval(heard)), timeout=30, what="it heard of them")


def test_program_in_another_folder_takes_no_job_and_no_event(here: Path, there: Path) -> None:
    with ExitStack() as stack:
        shop = stack.enter_context(remote("shop", here, streams=[{"topics": "orders.**"}]))
        biller = stack.enter_context(remote("biller", here))
        other = stack.enter_context(remote("laptop", there))
        for one in (biller, other):
            one.run("jobs = peer.subscribe('orders.**', group='billing', auto_ack=True)")
        other.run("events = peer.subscribe('**')")
        shop.run("peer.wait_for_subscribers('orders.1', count=1, timeout=30)")
        hears_of(other, "shop", "biller")
        hears_of(shop, "laptop")
        shop.run("peer.publish_many('orders.1', list(range(100)))")
        assert biller.eval("[jobs.get(timeout=30).data for _ in range(100)]") == list(range(100))
        assert other.eval("[jobs.get(timeout=0), events.get(timeout=0)]") == [None, None]
        assert other.eval("[info.name for info in peer.peers()]") == []


def test_address_that_somebody_gave_leads_into_another_folder(here: Path, there: Path) -> None:
    with (
        remote("shop", here, streams=[{"topics": "orders.**"}]) as shop,
        remote("office", there, connect=shop.address) as office,
    ):
        office.run("events = peer.subscribe('orders.**')")
        shop.run("peer.wait_for_subscribers('orders.1', count=1, timeout=30)")
        shop.run("peer.publish('orders.1', 7)")
        assert office.eval("events.get(timeout=30).data") == 7


def test_name_of_a_mesh_leads_into_another_folder(mesh: str, here: Path, there: Path) -> None:
    with (
        remote("shop", here, mesh=mesh, streams=[{"topics": "orders.**"}]) as shop,
        remote("office", there, mesh=mesh) as office,
    ):
        office.run("events = peer.subscribe('orders.**')")
        shop.run("peer.wait_for_subscribers('orders.1', count=1, timeout=30)")
        assert office.eval("peer.stats()['discovery']['elsewhere']") == []


def test_two_terminals_in_one_folder_find_each_other(here: Path) -> None:
    reader = command(here, "sub", "greetings.**", "--count", "1")
    writer = command(here, "pub", "greetings.world", "hello")
    out, err = reader.communicate(timeout=60)
    assert "hello" in out, err
    assert writer.wait(60) == 0


def test_peers_and_doctor_tell_of_those_in_other_folders(here: Path, there: Path) -> None:
    with remote("shop", here) as shop, remote("desk", here) as desk:
        shop.run("peer.wait_for_peers(1, timeout=30)")
        told = "2 peers of other folders are here: give both the same --mesh to meet"

        def say(*words: str) -> str:
            """Ask again while only one of the two has answered."""
            for _ in range(10):
                said = "".join(command(there, *words, "--wait", "20s").communicate(timeout=60))
                if told in said:
                    return said
            raise AssertionError(said)

        say("peers")
        lines = [line for line in say("doctor", "--json").splitlines() if line.startswith("{")]
        (found,) = [x["found"] for x in map(json.loads, lines) if told in x["found"]]
        assert shop.address in found
        assert desk.address in found


@pytest.mark.parametrize(
    "container",
    [
        ["unshare", "--pid", "--fork", "--mount-proc"],
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t tmpfs x "$PWD" && cd "$PWD" && exec "$@"',
            "sh",
        ],
    ],
    ids=["processes", "disk"],
)
def test_folder_of_the_same_name_in_a_container_is_another(
    tmp_path: Path, container: list[str]
) -> None:
    def scope(*within: str) -> str:
        command = [*within, *processes.program("folder_scope")]
        found = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
        return found.stdout

    assert scope() == scope()
    assert scope() != scope(*container)


def test_services_in_the_root_folder_are_alone_with_their_processes() -> None:
    def scopes() -> list[str]:
        command = processes.program("folder_scope", "again")
        return subprocess.run(
            command, cwd="/", start_new_session=True, capture_output=True, text=True, check=True
        ).stdout.split()

    (one, ones_child), (two, twos_child) = scopes(), scopes()
    assert one == ones_child
    assert two == twos_child
    assert one != two


def test_log_says_when_programs_meet_that_nobody_named(
    mesh: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.INFO, "meshmsg.discovery"),
        Peer("a", mesh=mesh, discovery="zeroconf") as a,
        Peer("b", mesh=mesh, discovery="zeroconf"),
    ):
        wait_until(lambda: len(a.peers()) == 1, timeout=30)
        wait_until(lambda: "of this mesh by zeroconf" in caplog.text)


def test_fixtures_of_three_test_processes_get_no_foreign_events(tmp_path: Path) -> None:
    running = [
        processes.start(
            [*within(tmp_path), *processes.program("own_mesh", name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for _ in range(2):  # all publish, then all look again
        for process in running:
            process.stdin.write("\n")
            process.stdin.flush()
    for name, process in zip("abc", running, strict=True):
        assert json.loads(process.stdout.readline()) == [name] * 50


def test_mesh_of_its_own_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHMSG_MESH", "before")
    with own_mesh() as one, own_mesh() as two:
        assert one != two
        assert Peer("a").config.mesh == two
        assert Peer("a", mesh="named").config.mesh == "named"
    assert os.environ["MESHMSG_MESH"] == "before"
    assert Peer("a").config.mesh == "before"
