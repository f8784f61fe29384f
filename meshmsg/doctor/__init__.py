"""What is in the way of meshmsg on this machine and in a mesh: what `meshmsg doctor` shows.

>>> from meshmsg.doctor import FAIL, check_machine
>>> [finding.found for finding in check_machine(mdns=False) if finding.status == FAIL]
[]

`findings` has what a check yields, `machine`, `mesh` and `keys` have the checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from meshmsg._links.resolver import others_text
from meshmsg._model.discovery_config import Discovery
from meshmsg._peer.peer import Peer
from meshmsg.doctor import keys, machine, mesh
from meshmsg.doctor.findings import FAIL, OK, SKIP, WARN, Check, Finding, examine
from meshmsg.doctor.mesh import names_twice

__all__ = [
    "FAIL",
    "Finding",
    "OK",
    "SKIP",
    "WARN",
    "check_machine",
    "check_mesh",
    "names_twice",
    "others_text",
]


def check_machine(
    interface: str = "127.0.0.1",
    *,
    data_dir: str | Path | None = None,
    spark: bool = False,
    mdns: bool = True,
) -> Iterator[Finding]:
    """Check what a peer at this interface needs; nothing goes beyond it.

    `data_dir` is a disk to check as well. With `spark`, Java and Spark have to be there. Without
    `mdns` nothing is announced.
    """
    folder = None if data_dir is None else Path(data_dir)
    checks: list[tuple[str, Check]] = [
        ("software", machine.software),
        ("interface", partial(machine.interfaces, interface)),
        ("mtu", partial(machine.mtu, interface)),
        ("multicast", partial(machine.multicast, interface)),
        ("socket buffers", machine.buffers),
        ("open files", partial(machine.open_files, Discovery().peers_max)),
        ("disk", partial(machine.disk, folder)),
        ("spark", partial(machine.spark, spark)),
        ("keys", partial(keys.keys, interface)),
    ]
    if mdns:
        checks.append(("mdns", partial(mesh.mdns, interface)))
    for name, check in checks:
        yield from examine(name, check)


def check_mesh(peer: Peer, named: Sequence[str] = ()) -> Iterator[Finding]:
    """Check whom an open peer has found, and the ports, version and clock of each.

    `named` are the addresses that it was given: each of them should answer.
    """
    yield from examine("discovery", partial(mesh.discovery, peer, named))
    yield from examine("peers", partial(mesh.peers, peer, named))
