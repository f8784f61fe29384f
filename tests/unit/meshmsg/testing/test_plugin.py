"""Fixtures of users' tests."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshmsg import ClosedError, Peer
from meshmsg.testing import MemoryMesh
from meshmsg.testing.plugin import killed, lossy_mesh, mesh

__all__ = ["killed", "lossy_mesh", "mesh"]


def exchange() -> None:
    with (
        Peer("shop") as shop,
        Peer("billing", connect=shop.address) as billing,
        billing.subscribe("orders.**") as events,
    ):
        shop.wait_for_subscribers("orders.new", count=1, timeout=5)
        for n in range(50):
            shop.publish("orders.new", n)
        got = [events.get(timeout=60) for _ in range(50)]
        assert [event.data for event in got if event] == list(range(50))


def test_mesh_is_a_world_of_its_own(mesh: MemoryMesh) -> None:
    exchange()
    assert mesh.now < 5


def test_lossy_mesh_loses(lossy_mesh: MemoryMesh) -> None:
    exchange()
    assert lossy_mesh.platform.network.default.loss > 0


def test_killed_peer_does_nothing_more(mesh: MemoryMesh, killed: Callable[[str], None]) -> None:
    shop = Peer("shop").open()
    killed("shop")
    with pytest.raises(ClosedError, match="killed"):
        shop.publish("orders.new", 1)
    mesh.sleep(1)


def test_seed_is_given_on_the_command_line_and_shown_on_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(mesh):\n    assert mesh.seed == 8\n")
    options = ["-p", "meshmsg.testing.plugin", "-p", "no:cacheprovider", "--mesh-seed"]
    runs = [
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, seed, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        for seed in ("8", "9")
    ]
    assert [run.returncode for run in runs] == [0, 1], runs
    assert "again: --mesh-seed 9" in runs[1].stdout
