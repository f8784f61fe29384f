"""The checks by public names; tests/cli/test_doctor.py tries each of them."""

from __future__ import annotations

from pathlib import Path

from meshmsg import Peer
from meshmsg.doctor import OK, check_machine, check_mesh


def test_a_machine_is_checked_step_by_step(tmp_path: Path) -> None:
    found = {finding.check: finding for finding in check_machine(data_dir=tmp_path, mdns=False)}
    assert {"software", "interface", "multicast", "open files", "disk fsync"} <= set(found)
    assert "mdns" not in found
    assert found["software"].as_dict()["found"].startswith("meshmsg ")


def test_peers_of_a_mesh_are_checked() -> None:
    with Peer("a", bind="tcp://127.0.0.1:*") as a, Peer("b", connect=a.address) as b:
        b.wait_for_peers(timeout=30)
        found = {finding.check: finding for finding in check_mesh(b, [a.address])}
    assert {"discovery", "ports", "protocol", "clock"} <= set(found)
    assert found["ports"].status == found["protocol"].status == OK
