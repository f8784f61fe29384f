"""A receiver cut off for 3 seconds: it catches up from the buffer, or knows what it lost."""

from __future__ import annotations

from typing import Any

from tests.support.netns import needs_namespaces
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

pytestmark = needs_namespaces()

RATE = 30_000
COUNT = 5 * RATE
#: Cut off about 3 seconds: from this event on, to that one.
CUT_FROM = RATE // 2
CUT_TO = 7 * RATE // 2
PUBLISHED = "peer.stats()['streams']['a.**']['published']"


def read_through_a_cut(mesh: Any, pub: RemotePeer) -> tuple[list[Any], Any]:
    """Publish for 5 seconds; `one`, connected, and `two`, by hand, are cut off for 3 of them.

    Returns what they have read, and what `three` has, which was there all the time.
    """
    subs = [mesh.by_hand("two", wait=False), mesh.receiver("one", pub), mesh.receiver("three", pub)]
    # Heard of by heartbeats, which begin with the first receiver.
    subs[0].run("events.wait_for_publishers(1, 30)")
    pub.run("peer.wait_for_subscribers('a.b', 2, 30)")
    for sub in subs:
        sub.send("reader.read(COUNT, 100)", evaluate=True, COUNT=COUNT)
    pub.use("loads")
    pub.run(f"publish_numbered_aside({COUNT}, {RATE})")
    wait_until(lambda: pub.eval(PUBLISHED) >= CUT_FROM)
    for name in ("one", "two"):
        mesh.net[name].cut()
    wait_until(lambda: pub.eval(PUBLISHED) >= CUT_TO)
    for name in ("one", "two"):
        mesh.net[name].join()
    *cut_off, other = [sub.answer(110) for sub in subs]
    assert (other["first"], other["delivered"], other["losses"]) == (0, COUNT, [])
    assert "publish_waits" not in pub.eval("peer.stats()['counters']")
    return cut_off, other


def test_catches_up_from_the_buffer(mesh: Any, ledger: Any) -> None:
    pub = mesh.publisher(overflow="drop_oldest")
    cut_off, _ = read_through_a_cut(mesh, pub)
    for result in cut_off:
        assert (result["first"], result["delivered"], result["losses"]) == (0, COUNT, [])
    rows = ledger(pub.address, within=mesh.net["sender"].command)
    assert [row["delivered"] for row in rows] == [COUNT] * 2


def test_reports_the_exact_range_beyond_the_buffer(mesh: Any, ledger: Any) -> None:
    pub = mesh.publisher(overflow="drop_oldest", buffer_bytes="1MiB")
    cut_off, _ = read_through_a_cut(mesh, pub)
    for result in cut_off:
        # The reader has checked each event and that each gap is a loss, to the number.
        assert result["delivered"] + result["lost"] == COUNT
        assert {reason for _, _, _, reason in result["losses"]} == {"overflow"}
        assert 0 < result["lost"] <= COUNT - CUT_FROM
    rows = ledger(pub.address, within=mesh.net["sender"].command, lost=True)
    assert sorted(row["lost"].get("overflow", 0) for row in rows) == [0, cut_off[1]["lost"]]
    assert all(row["published"] == COUNT for row in rows)


def test_publisher_that_waits_goes_on_without_the_one_that_is_cut_off(mesh: Any) -> None:
    pub = mesh.publisher(transport={"receiver_timeout": "1s"})
    subs = [mesh.receiver(name, pub) for name in ("one", "two")]
    pub.run("peer.wait_for_subscribers('a.b', 2, 30)")
    for sub in subs:
        sub.send("reader.read(400_000, 60)", evaluate=True)
    mesh.net["one"].cut()
    pub.run("numbered.publish(peer, 'a.b', 0, 400_000)", 60)
    silent = "peer.stats()['streams']['a.**']['multicast'].get('silent_receivers', 0)"
    wait_until(lambda: pub.eval(silent) == 1, 30)
    assert subs[1].answer(60)["losses"] == []
    mesh.net["one"].join()
    result = subs[0].answer(70)
    assert (result["delivered"], result["losses"]) == (400_000, [])
    wait_until(lambda: pub.eval("peer.stats()['streams']['a.**']['multicast']['receivers']") == 2)
