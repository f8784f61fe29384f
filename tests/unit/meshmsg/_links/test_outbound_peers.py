"""Links to a peer that answers as a test has it: states, pages, refusals, and redialling."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshmsg._links import outbound_peers as module
from meshmsg._links.outbound_peer import PAGE_S, Link
from meshmsg._links.outbound_peers import BACK_S, BACKS_PER_PEER_MAX, HELLO_NAMES_BYTES_MAX
from meshmsg._model.message_fields import HELLO_STREAMS_MAX
from meshmsg._wire import control as c
from meshmsg.transports.zmq.connection_monitor import connections_allowed
from tests.support.linking import FAR, HERE, ME, Far, Linking, client, far, linking, stream

NOBODY = "tcp://127.0.0.1:1"


@pytest.fixture
def side() -> Iterator[Linking]:
    with linking(peer_timeout_s=60.0) as made:
        yield made


@pytest.fixture
def peer(side: Linking) -> Iterator[Far]:
    with far(side) as made:
        yield made


def greeted(side: Linking, peer: Far) -> Link:
    """A link whose hello was heard."""
    side.links.dial(peer.address)
    link = side.table.by_address[peer.address]
    side.until(lambda: peer.heard(c.Hello))
    return link


def met(side: Linking, peer: Far, *streams: c.StreamInfo) -> Link:
    """A link that is up."""
    link = greeted(side, peer)
    peer.say(peer.welcome(*streams))
    side.until(lambda: link.state == "up")
    return link


# Saying hello ----------------------------------------------------------------------------------


def test_hello_says_who_we_are_where_we_listen_and_that_there_are_streams(
    side: Linking, peer: Far
) -> None:
    side.infos = [stream("me/a")]
    assert greeted(side, peer).state == "greeting"
    (hello,) = peer.heard(c.Hello)
    assert (hello.peer, hello.instance, hello.mesh) == ("me", ME, "default")
    assert (hello.dialled, hello.listen, hello.streams) == (peer.address, [HERE], ["me/a"])


def test_hello_names_as_many_streams_as_fit(side: Linking, peer: Far) -> None:
    side.infos = [stream(f"me/{n:0200}") for n in range(HELLO_STREAMS_MAX + 5)]
    greeted(side, peer)
    names = peer.heard(c.Hello)[0].streams
    assert 0 < len(names) <= HELLO_STREAMS_MAX
    assert sum(map(len, names)) <= HELLO_NAMES_BYTES_MAX


def test_welcome_brings_the_link_up(side: Linking, peer: Far) -> None:
    inlet = side.inlet()
    link = met(side, peer, stream("far/a"))
    assert (link.peer, link.instance, list(link.streams)) == ("far", FAR, ["far/a"])
    assert link.data_address == "tcp://127.0.0.1:5555"
    assert len(inlet.notices) >= 1
    assert side.said(c.Here, link)  # who we are
    side.links.dial(peer.address)  # known already
    assert len(side.table.all()) == 1


def test_pages_are_taken_one_after_the_other_and_a_lost_one_is_said_again(
    side: Linking, peer: Far
) -> None:
    link = greeted(side, peer)
    peer.say(peer.welcome(stream("far/a"), more=True))
    side.until(lambda: link.listing is not None)
    peer.say(peer.welcome(stream("far/c"), page=2))
    side.until(lambda: side.counters["bad_control"])
    assert len(side.said(c.Hello)) == 2
    peer.say(peer.welcome(stream("far/a"), more=True), peer.welcome(stream("far/b"), page=1))
    side.until(lambda: link.listing is None and len(link.streams) == 2)


def test_page_that_does_not_come_is_asked_for(side: Linking, peer: Far) -> None:
    link = greeted(side, peer)
    peer.say(peer.welcome(stream("far/a"), more=True))
    side.until(lambda: link.listing is not None)
    assert link.listing is not None
    side.links.on_ping(link.listing.due - PAGE_S / 2)
    assert len(side.said(c.Hello)) == 1
    side.links.on_ping(link.listing.due)
    assert len(side.said(c.Hello)) == 2


def test_stream_that_was_declared_meanwhile_is_said(side: Linking, peer: Far) -> None:
    greeted(side, peer)
    side.infos = [stream("me/a")]
    peer.say(peer.welcome())
    side.until(lambda: len(side.said(c.Hello)) == 2)
    assert side.said(c.Hello)[1].streams == ["me/a"]


def test_streams_of_ours_that_a_recorder_has_are_not_lent_to_us(side: Linking, peer: Far) -> None:
    side.infos = [stream("me/a")]
    link = greeted(side, peer)
    peer.say(peer.welcome(stream("far/a"), recorded=[stream(n) for n in ("me/a", "far/a", "x/a")]))
    side.until(lambda: link.state == "up")
    assert list(link.recorded) == ["x/a"]


# Refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["version", "mesh", "refused"])
def test_refusal_of_either_side_is_kept_with_its_reason(side: Linking, peer: Far, how: str) -> None:
    link = greeted(side, peer)
    inlet = side.inlet()
    message, reason = {
        "version": (c.encode_refusal("too old", 99), "99"),
        "mesh": (peer.welcome(mesh="other"), "mesh 'other' meets mesh 'default'"),
        "refused": (c.Refused("not you"), "not you"),
    }[how]
    peer.say(message)
    side.until(lambda: link.state == "refused")
    assert reason in link.reason
    assert side.counters["refused"] == 1
    assert inlet.woken == 1
    refusal = side.table.refusal()
    assert refusal is not None


def test_name_that_another_peer_has_is_refused_and_told(side: Linking, peer: Far) -> None:
    other = side.up(NOBODY, "far", FAR + 1, stream("far/a"))
    link = greeted(side, peer)
    peer.say(peer.welcome(stream("far/a")))
    side.until(lambda: link.state == "refused")
    assert link.taken
    assert "in use at tcp://127.0.0.1:1" in link.reason
    side.until(lambda: peer.heard(c.Taken))
    assert peer.heard(c.Taken) == [c.Taken([other.address])]
    assert link.knock_due is not None
    side.links.drop(other)
    side.links.on_ping(link.knock_due)  # the other one has left: try again
    side.until(lambda: len(peer.heard(c.Hello)) == 2)


@pytest.mark.parametrize(("given", "left"), [(True, ["duplicate"]), (False, [])])
def test_second_address_of_one_peer_is_not_used(
    side: Linking, peer: Far, given: bool, left: list[str]
) -> None:
    side.up(NOBODY, "far", FAR)
    side.links.dial(peer.address, given=given)
    side.until(lambda: peer.heard(c.Hello))
    peer.say(peer.welcome())
    states = lambda: [one.state for one in side.table.all() if one.address != NOBODY]  # noqa: E731
    side.until(lambda: states() == left)


# What comes over links -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        b"",
        b"x" * 100,
        c.encode_message(c.Hello("far", FAR, "default")),
        c.encode_message(c.Ping(1)),
    ],
)
def test_noise_of_a_dialled_peer_is_counted(side: Linking, peer: Far, noise: bytes) -> None:
    link = met(side, peer)
    peer.say(noise)
    side.until(lambda: side.counters["bad_control"] or link.state == "refused")


def test_peer_that_was_started_anew_at_its_address_is_greeted_anew(
    side: Linking, peer: Far
) -> None:
    link = met(side, peer)
    peer.say(c.Pong(0, FAR + 1, []))
    side.until(lambda: link.state == "greeting")
    peer.say(peer.welcome(instance=FAR + 1))
    side.until(lambda: link.instance == FAR + 1)
    peer.say(c.Unknown())  # it does not know us any more
    side.until(lambda: len(side.said(c.Hello)) == 3)


def test_good_bye_is_answered_once(side: Linking, peer: Far) -> None:
    link = met(side, peer)
    peer.say(c.Bye(FAR, []), c.Bye(FAR, []))
    side.until(lambda: link.state == "left")
    side.until(lambda: peer.heard(c.Bye))
    assert len(side.said(c.Bye)) == 1


def test_defect_in_reading_costs_one_message(
    side: Linking, peer: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = met(side, peer)

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(side.offers, "on_link_message", fail)
        peer.say(c.Pong(0, FAR, []))
        side.until(lambda: side.counters["io_errors"])
    peer.say(c.Bye(FAR, []))
    side.until(lambda: link.state == "left")


def test_who_has_used_its_time_waits_and_is_read_again(
    side: Linking, peer: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = met(side, peer)
    link.budget.spend(1e3, now=link.last_seen)
    peer.say(c.Pong(0, FAR, []), c.Bye(FAR, []))
    side.until(lambda: side.counters["answers_delayed"])
    side.turn()
    assert link.state == "up"
    due = side.links.on_tick(link.last_seen)
    assert due > link.last_seen
    side.links.on_tick(due)
    side.until(lambda: link.state == "left")


# Time ------------------------------------------------------------------------------------------


def test_peer_that_gives_no_sign_of_life_is_dialled_anew(side: Linking, peer: Far) -> None:
    link = met(side, peer, stream("far/a"))
    side.links.on_ping(link.last_seen + 59.0)
    assert link.state == "up"
    side.links.forgive(30.0)
    side.links.on_ping(link.last_seen + 59.0)
    assert link.state == "up"
    side.links.on_ping(link.last_seen + 61.0)
    assert link.state == "dialling"
    side.until(lambda: len(peer.heard(c.Hello)) == 2)


def test_peers_without_streams_are_asked_less_often(side: Linking, peer: Far) -> None:
    link = met(side, peer)
    now = link.last_seen
    for step in range(10):
        side.links.on_ping(now + step)
    assert len(side.said(c.Ping)) == 1
    link.streams = {"far/a": stream("far/a")}
    for step in range(20, 25):
        side.links.on_ping(now + step)
    assert len(side.said(c.Ping)) == 6


def test_connection_that_breaks_is_dialled_again(side: Linking, peer: Far) -> None:
    link = met(side, peer)
    peer.close()
    side.until(lambda: link.state == "dialling")
    assert link.reconnects == 0


# Dialling back ---------------------------------------------------------------------------------


def hello(instance: int, *listen: str, streams: tuple[str, ...] = ("x/a",)) -> c.Hello:
    return c.Hello("x", instance, "default", listen=list(listen), streams=list(streams))


def test_peer_with_streams_that_dialled_us_is_dialled_back_where_it_came_from(
    side: Linking, peer: Far
) -> None:
    port = peer.address.rpartition(":")[2]
    side.links.on_hello(hello(FAR, f"tcp://10.1.2.3:{port}", "tcp://10.1.2.3:7"), "127.0.0.1")
    assert [(one.address, one.given, one.back) for one in side.table.all()] == [
        (peer.address, False, FAR)
    ]
    side.until(lambda: peer.heard(c.Hello))


@pytest.mark.parametrize("streams", [(), ("x/a",)])
def test_peer_without_streams_or_that_is_linked_is_not_dialled_back(
    side: Linking, streams: tuple[str, ...]
) -> None:
    if streams:
        side.up(NOBODY, "x", FAR)
    side.links.on_hello(hello(FAR, "tcp://x:7", streams=streams), "127.0.0.1")
    assert len(side.table.all()) == bool(streams)


def test_peer_is_dialled_back_at_so_many_addresses_at_once(side: Linking) -> None:
    for port in range(1, BACKS_PER_PEER_MAX + 3):
        side.links.on_hello(hello(FAR, f"tcp://x:{port}"), "127.0.0.1")
    assert len(side.table.all()) == BACKS_PER_PEER_MAX
    side.links.forget_back(FAR)  # it is gone
    assert side.table.all() == []


def test_those_who_do_not_answer_give_way_and_have_their_turn_again(
    side: Linking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "connections_allowed", lambda wanted, share: module.FILES_PER_LINK)
    assert connections_allowed(1) >= 1
    for number in (1, 2):
        side.clients[b"%d" % number] = client("x", FAR + number)
        side.links.on_hello(hello(FAR + number, f"tcp://x:{number}"), "127.0.0.1")
    assert [one.address for one in side.table.all()] == ["tcp://127.0.0.1:2"]
    assert side.counters["dial_backs_dropped"] == 1
    (waiting,) = side.table.all()
    side.links.on_ping(waiting.dialled_at + BACK_S)
    assert [one.address for one in side.table.all()] == ["tcp://127.0.0.1:1"]


def test_peer_that_was_dialled_back_and_is_gone_is_given_up(side: Linking, peer: Far) -> None:
    side.clients[b"x"] = client("far", FAR)
    side.links.on_hello(hello(FAR, peer.address), "127.0.0.1")
    side.until(lambda: peer.heard(c.Hello))
    peer.say(peer.welcome())
    (link,) = side.table.all()
    side.until(lambda: link.state == "up")
    link.state = "dialling"
    side.links.on_ping(link.last_seen)
    assert side.table.all() == [link]  # its own connection to us stands
    del side.clients[b"x"]
    side.links.on_ping(link.last_seen)
    assert side.table.all() == []


# The end ---------------------------------------------------------------------------------------


def test_everyone_is_told_that_we_leave(side: Linking, peer: Far) -> None:
    link = met(side, peer)
    side.up(NOBODY, "other", FAR + 1).state = "dialling"
    side.links.leave()
    assert side.said(c.Bye, link) == [c.Bye(ME, [])]
    assert len(side.said(c.Bye)) == 1


def test_new_streams_are_said_to_all_who_are_up(side: Linking, peer: Far) -> None:
    link = met(side, peer)
    side.infos = [stream("me/a")]
    side.links.hello_all()
    assert side.said(c.Hello, link)[-1].streams == ["me/a"]


def test_links_have_a_limit(side: Linking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINKS_MAX", 1)
    for port in (1, 2):
        side.links.dial(f"tcp://127.0.0.1:{port}")
    assert len(side.table.all()) == 1
    assert side.counters["links_full"] == 1
