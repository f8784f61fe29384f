"""What a part of a program shows: a peer while it is there, and the disks that it writes to."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from meshmsg import ClosedError, Monitor, Peer, Stream
from meshmsg.monitor.parts import disk_samples, look_at_disks, peer_part
from meshmsg.monitor.readiness import CHECKS, Disk

LIMITS = Monitor("127.0.0.1:0")


def test_a_peer_shows_its_figures_and_where_it_writes(tmp_path: Path) -> None:
    streams = [Stream("a.**", durability="log")]
    with Peer("shop", streams=streams, data_dir=tmp_path / "data") as peer:
        peer.publish("a.b", 1)
        view = peer_part(peer, LIMITS)()
        assert view.figures["streams"].keys() == peer.stats()["streams"].keys()
    samples = list(view.samples)
    names = {sample.metric.name for sample in samples}
    assert {"meshmsg_disk_free_bytes", "meshmsg_disk_size_bytes"} <= names
    paths = {s.labels for s in samples if s.metric.name == "meshmsg_disk_free_bytes"}
    assert paths == {(str(tmp_path / "data"),)}
    assert view.checks == CHECKS


def test_a_peer_without_a_folder_has_no_disk() -> None:
    with Peer("plain") as peer:
        view = peer_part(peer, LIMITS)()
    assert not [s for s in view.samples if "disk" in s.metric.name]
    assert view.problems == []


def test_a_peer_that_is_full_is_not_ready(tmp_path: Path) -> None:
    limits = Monitor("127.0.0.1:0", disk_free_min=2**60, disk_share_min=1.0)
    with Peer("shop", data_dir=tmp_path) as peer:
        view = peer_part(peer, limits)()
    assert [problem.check for problem in view.problems] == ["disks"]


def test_a_peer_that_is_gone_is_closed_and_is_not_held() -> None:
    peer = Peer("gone")
    part = peer_part(peer, LIMITS)
    with peer:
        pass
    del peer
    gc.collect()
    with pytest.raises(ClosedError, match="gone"):
        part()


def test_a_folder_that_is_not_made_yet_is_on_the_disk_above_it(tmp_path: Path) -> None:
    (here, later) = look_at_disks([str(tmp_path), str(tmp_path / "a" / "b")])
    assert later.path == str(tmp_path / "a" / "b")
    assert later.size_bytes == here.size_bytes > 0
    assert not (tmp_path / "a").exists()
    assert look_at_disks([]) == []


def test_a_disk_that_cannot_be_asked_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise OSError("stale handle")

    monkeypatch.setattr("shutil.disk_usage", refuse)
    assert look_at_disks(["/"]) == [Disk("/", 0, 0)]


def test_disks_are_samples_by_their_path() -> None:
    found = disk_samples([Disk("/a", 5, 10)])
    assert [(s.metric.name, s.labels, s.value) for s in found] == [
        ("meshmsg_disk_free_bytes", ("/a",), 5.0),
        ("meshmsg_disk_size_bytes", ("/a",), 10.0),
    ]
