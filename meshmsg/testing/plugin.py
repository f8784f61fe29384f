"""Fixtures for pytest, found by their entry point: `mesh`, `lossy_mesh`, `killed`.

`--mesh-seed` chooses the seed of their worlds; a test that fails shows which one it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from meshmsg.testing.memory_mesh import MemoryMesh

#: What a bad network does, for `lossy_mesh`.
LOSS = 0.05
DUPLICATION = 0.02
JITTER_S = 0.005


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have a seed given on the command line."""
    group = parser.getgroup("meshmsg")
    group.addoption(
        "--mesh-seed", type=int, default=0, help="seed of the worlds of `mesh` and `lossy_mesh`"
    )


def _seed_of(request: pytest.FixtureRequest) -> int:
    seed: int = request.config.getoption("--mesh-seed", default=0)
    request.node.add_report_section("setup", "mesh", f"again: --mesh-seed {seed}")
    return seed


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> Iterator[MemoryMesh]:
    """Peers that the test opens are in one simulated world, with a network that loses nothing."""
    with MemoryMesh(_seed_of(request)) as one:
        yield one


@pytest.fixture
def lossy_mesh(request: pytest.FixtureRequest) -> Iterator[MemoryMesh]:
    """The same with a bad network: it loses, doubles and delays."""
    seed = _seed_of(request)
    with MemoryMesh(seed, loss=LOSS, duplication=DUPLICATION, jitter=JITTER_S) as one:
        yield one


@pytest.fixture
def killed(mesh: MemoryMesh) -> Callable[[str], None]:
    """Kills a peer of `mesh` by its name, as SIGKILL does; its disk stays."""
    return mesh.kill
