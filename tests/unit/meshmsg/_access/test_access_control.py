"""What those who are connected may ask for and say, and who is cut off."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from meshmsg import ConfigError, PeerConfig, Security, Stream
from meshmsg._access import access_control
from meshmsg._access.access_control import LOOK_S, Gate
from meshmsg._access.allow_list import Grant
from meshmsg._access.key_files import allow, new_folder, revoke
from meshmsg._access.keyring import EVERYONE, Keyring
from meshmsg._links.inbound_peer import Client
from meshmsg._links.outbound_peer import Link, LinkTable
from meshmsg._runtime.log_limit import LogLimit
from meshmsg._wire import control as c
from meshmsg.recovery.stream.quotas import Owner, Quota
from meshmsg.transports.zmq.control import NOWHERE

KEY = "Zq3-uY8hJx0_vB5nRkT2wLmEo7sD1fGc9aXpQi4HyUz"
STREAMS = {"shop/orders.**": "orders.**", "shop/quotes.**": "quotes.**"}
LINK = b"link"


class World:
    """A gate of the peer `shop`, and what it asks others."""

    def __init__(self, folder: Path | None = None, mesh_key: str | None = None) -> None:
        security = None
        if folder is not None:
            security = Security(key_dir=str(folder))
        elif mesh_key is not None:
            security = Security(mesh_key=mesh_key)
        self.config = PeerConfig(
            "shop", streams=tuple(map(Stream, STREAMS.values())), security=security
        )
        self.counters: Counter[str] = Counter()
        self.table = LinkTable()
        self.clients: dict[bytes, Client] = {}
        self.links: dict[int, list[bytes]] = {}
        self.cut: list[tuple[set[bytes], float]] = []
        self.gate = Gate(
            self.config,
            None if security is None else Keyring(security),
            LogLimit(logging.getLogger("meshmsg.peer"), self.counters),
            self.counters,
            self.table,
            self.clients,
            lambda: list(STREAMS),
            STREAMS.get,
            lambda sub: self.links.get(sub, []),
            lambda keys, now: self.cut.append((keys, now)),
        )

    def link(self, name: str, user: bytes = b"") -> Link:
        """A peer that we dialled, and that answered."""
        address = f"tcp://192.0.2.{len(self.table.all()) + 1}:7000"
        link = Link(address, cast("Any", None), given=True)
        link.state, link.peer, link.instance, link.user = "up", name, 7, user
        self.table.by_address[address] = link
        return link

    def client(self, identity: bytes, name: str, user: bytes = b"") -> None:
        """A peer that dialled us."""
        self.clients[identity] = Client(c.Hello(name, 7, "default"), "192.0.2.9", user, 0.0)


class Keys:
    """The folder of `shop`, and who else is on its list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own = new_folder(folder, "shop", KEY)

    def user(self, name: str, *rights: Any) -> bytes:
        key = secrets.token_bytes(32)
        allow(self.folder, Grant(name, key, *rights))
        return key.hex().encode()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "shop")


def info(name: str, topics: str) -> c.StreamInfo:
    return c.StreamInfo(name, topics, 1, "block", "msgpack", 1)


def welcome(peer: str, *streams: c.StreamInfo, recorded: list[c.StreamInfo] | None = None) -> Any:
    return c.Welcome(peer, 7, "default", list(streams), [], recorded or [])


# Without keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mesh_key", [None, KEY])
def test_where_peers_have_no_keys_of_their_own_all_may_do_all(mesh_key: str | None) -> None:
    world = World(mesh_key=mesh_key)
    gate, user = world.gate, EVERYONE
    gate.open()
    assert gate.why_not(user, "anybody") == ""
    assert not gate.is_another(5, user)
    assert gate.may_receive(user, "shop/orders.**")
    assert gate.may_read(user, "orders.**")
    asked = c.Nack(1, "shop/orders.**", 1, [(0, 1)], 1)
    assert gate.permitted(user, asked) is asked
    assert gate.on_tick(0.0) == float("inf")
    assert gate.nonce() == b""
    assert gate.identify(world.link("pub"), welcome("pub")) == ""
    assert gate.stats()["mode"] == ("none" if mesh_key is None else "mesh key")


@pytest.mark.parametrize(
    ("host", "may"),
    [("", True), ("127.0.0.1", True), ("::1", True), ("192.0.2.9", False), (NOWHERE, False)],
)
def test_without_keys_only_programs_on_the_machine_operate_and_with_a_mesh_key_all(
    host: str, may: bool
) -> None:
    problem = World().gate.why_not_operate(EVERYONE, host)
    assert problem == (
        "" if may else "without keys only programs on its own machine may operate a peer"
    )
    assert World(mesh_key=KEY).gate.why_not_operate(EVERYONE, host) == ""


def test_with_an_allow_list_only_keys_that_it_gives_this_operate(keys: Keys) -> None:
    world = World(keys.folder)
    desk = keys.user("desk")
    boss = keys.user("boss", ("**",), ("**",), False, True)
    world.gate.on_tick(LOOK_S)
    world.gate.on_tick(2 * LOOK_S)
    assert world.gate.why_not_operate(boss, "192.0.2.9") == ""
    assert "does not let 'desk' operate this peer" in world.gate.why_not_operate(desk, "127.0.0.1")
    assert "does not let 'nobody'" in world.gate.why_not_operate(b"?" * 64, "")


def test_streams_under_the_name_of_another_peer_are_not_taken() -> None:
    world = World()
    told = welcome("pub", info("pub/a", "a"), info("other/a", "a"), info("pubs/a", "a"))
    assert [one.name for one in world.gate.screen(world.link("pub"), told).streams] == ["pub/a"]
    assert world.counters["not_permitted"] == 2


def test_places_are_those_of_a_host_without_keys_and_of_a_key_with_them(keys: Keys) -> None:
    user = keys.user("desk")
    for world, owner in (
        (World(), Owner("192.0.2.9", LINK)),
        (World(keys.folder), Owner(user.decode())),
    ):
        world.client(LINK, "desk", user)
        assert world.gate.owner_of(LINK) == owner
    assert World().gate.owner_of(b"nobody") == Owner("", b"nobody")


# What may be asked -----------------------------------------------------------------------------


def test_a_user_sees_and_receives_the_streams_that_it_may_subscribe_to(keys: Keys) -> None:
    desk, stranger = keys.user("desk", ("**",), ("quotes.**",)), b"ab" * 32
    gate = World(keys.folder).gate
    infos = [info(name, topics) for name, topics in STREAMS.items()]
    tails = [c.Tail(name, 1, 0, 1) for name in STREAMS]
    for user, seen in ((desk, ["shop/quotes.**"]), (stranger, [])):
        assert [one.name for one in gate.may_see(user, infos)] == seen
        assert [one.stream for one in gate.tails(user, tails)] == seen
        assert [name for name in STREAMS if gate.may_receive(user, name)] == seen
    assert not gate.may_receive(desk, "shop/of another day")
    assert gate.may_read(desk, "quotes.eu.*")
    assert not gate.may_read(desk, "**")


def test_a_prefix_of_the_data_socket_is_a_whole_stream_or_a_token(keys: Keys) -> None:
    desk = keys.user("desk", ("**",), ("quotes.**",))
    world = World(keys.folder)
    may = world.gate.may_take
    mesh = world.config.mesh
    good, bad = (
        c.stream_wire_id(mesh, name).to_bytes(8, "little")
        for name in ("shop/quotes.**", "shop/orders.**")
    )
    assert may(desk, good)
    assert may(desk, c.subscription_token(7))
    for prefix in (bad, b"", good[:7], good + b"x", c.subscription_token(7)[:11], b"x" * 12):
        assert not may(desk, prefix), prefix


def start(stream: str) -> c.Start:
    return c.Start(stream, "live")


def subscribe(*streams: str, sub: int = 1) -> c.Subscribe:
    return c.Subscribe(sub, ["**"], [start(stream) for stream in streams])


def test_of_what_is_asked_for_the_part_is_left_that_is_permitted(keys: Keys) -> None:
    desk = keys.user("desk", ("**",), ("quotes.**",), False)
    world = World(keys.folder)
    orders, quotes = STREAMS
    join = c.Join(1, "g", ["**"], [start(orders), start(quotes)], 1, 1.0, 1, "none")
    commit = c.Commit(1, [c.Place(orders, 1, 1), c.Place(quotes, 1, 1)])
    asked: list[tuple[c.Message, c.Message | None]] = [
        (subscribe(orders, quotes), subscribe(quotes)),
        (subscribe(orders), None),
        (join, c.Join(1, "g", ["**"], [start(quotes)], 1, 1.0, 1, "none")),
        (commit, c.Commit(1, [c.Place(quotes, 1, 1)])),
        (c.Commit(1, [c.Place(orders, 1, 1)]), None),
        (c.Nack(1, orders, 1, [(0, 1)], 1), None),
        (c.Ask(1, "stats"), None),
    ]
    for message, left in asked:
        assert world.gate.permitted(desk, message) == left
    assert world.counters["not_permitted"] == len(asked)
    for message in (
        subscribe(quotes),
        c.Nack(1, quotes, 1, [(0, 1)], 1),
        c.Ask(1, "clock"),
        c.Ping(1),
    ):
        assert world.gate.permitted(desk, message) is message
    assert world.counters["not_permitted"] == len(asked)


def test_nobody_changes_the_subscription_of_another_key(keys: Keys) -> None:
    desk, mallory = keys.user("desk"), keys.user("mallory")
    world = World(keys.folder)
    world.client(LINK, "desk", desk)
    world.links[5] = [LINK]
    asked = subscribe("shop/quotes.**", sub=5)
    assert world.gate.permitted(desk, asked) is asked
    assert world.gate.permitted(mallory, asked) is None


# Those whom we dial ----------------------------------------------------------------------------


def test_a_peer_proves_the_key_that_it_names_and_that_the_list_gives_its_name(
    keys: Keys, tmp_path: Path
) -> None:
    pub = new_folder(tmp_path / "pub", "pub", KEY)
    allow(tmp_path / "pub", keys.own)
    theirs = World(tmp_path / "pub").gate
    world = World(keys.folder)
    assert theirs.keyring is not None
    number = theirs.keyring.draw_number()
    me = keys.own.key.hex().encode()

    def answered(peer: str = "pub", instance: int = number) -> str:
        link = world.link(peer)
        link.nonce = world.gate.nonce()
        said = theirs.sign(me, link.nonce, c.Welcome(peer, instance, "default", [], []))
        reason = world.gate.identify(link, said)
        assert link.user == (b"" if reason else pub.key.hex().encode())
        return reason

    assert "does not name the public key" in answered()
    allow(keys.folder, pub)
    assert [world.gate.on_tick(now) for now in (0.0, LOOK_S)]
    assert answered() == ""
    assert "has the key of 'pub'" in answered("other")
    assert "is not one of its key" in answered(instance=number ^ 1 << 62)
    link = world.link("pub")
    link.nonce = world.gate.nonce()
    unsigned = theirs.sign(me, b"short", c.Welcome("pub", number, "default", [], []))
    assert "did not prove its key" in world.gate.identify(link, unsigned)


def test_a_publisher_is_heard_of_what_it_may_publish(keys: Keys) -> None:
    user = keys.user("pub", ("a.**",))
    world = World(keys.folder)
    told = welcome("pub", info("pub/a.**", "a.**"), info("pub/b.**", "b.**"), info("x/a", "a.b"))
    link = world.link("pub", user)
    assert [one.name for one in world.gate.screen(link, told).streams] == ["pub/a.**"]
    assert world.counters["not_permitted"] == 2


def test_what_a_publisher_declares_is_taken_from_recorders_that_may_not_lend_it(
    keys: Keys,
) -> None:
    pub, recorder = keys.user("pub"), keys.user("recorder", ("chat.**",))
    world = World(keys.folder)
    lending = world.link("recorder", recorder)
    false = info("pub/orders", "chat.**")
    told = world.gate.screen(lending, welcome("recorder", recorded=[false]))
    assert told.recorded == [false]  # as far as anybody knows
    lending.recorded = {false.name: false}
    world.gate.screen(world.link("pub", pub), welcome("pub", info("pub/orders", "orders.**")))
    assert lending.recorded == {}
    assert world.gate.screen(lending, welcome("recorder", recorded=[false])).recorded == []


def test_one_that_was_dialled_is_believed_of_its_own_streams_only() -> None:
    world = World()
    link = world.link("pub")
    link.streams = {"pub/a": info("pub/a", "a")}
    link.recorded = {"other/b": info("other/b", "b")}

    def subscribed(stream: str, *, recorded: bool = False) -> c.Subscribed:
        return c.Subscribed(1, stream, 1, 0, 0, 0, 0, recorded=recorded)

    good: list[c.Message] = [
        c.Repair(1, "pub/a", 1),
        c.Gone(1, "other/b", 1, [(0, 1)], "gone", 1),
        subscribed("pub/a"),
        subscribed("other/b", recorded=True),
        c.Unsubscribed(1, ["pub/a", "other/b"], "why"),
        c.Kept(1, "pub/a", 1),
        c.Joined(1, [c.Tail("pub/a", 1, 0, 0)], []),
        c.Here("pub", 7, 1),
        c.Bye(7, []),
        c.Unknown(),
    ]
    bad: list[c.Message] = [
        c.Repair(1, "other/a", 1),
        subscribed("other/b"),
        c.Unsubscribed(1, ["pub/a", "x/y"], "why"),
        c.Kept(1, "other/b", 1),
        c.Rekey(1, "other/b", []),
        c.Joined(1, [c.Tail("pub/a", 1, 0, 0), c.Tail("other/b", 1, 0, 0)], []),
        c.Here("other", 7, 1),
        c.Bye(8, []),
    ]
    assert all(world.gate.is_believed(link, message) for message in good)
    assert not world.counters["strange_answers"]
    assert not any(world.gate.is_believed(link, message) for message in bad)
    assert world.counters["strange_answers"] == len(bad)


def test_one_that_has_not_proved_its_key_is_believed_nothing_but_who_it_is(keys: Keys) -> None:
    world = World(keys.folder)
    link = world.link("pub")
    link.streams = {"pub/a": info("pub/a", "a")}
    assert not world.gate.is_believed(link, c.Repair(1, "pub/a", 1))
    assert world.gate.is_believed(link, welcome("pub"))
    assert world.gate.is_believed(link, c.Refused("why"))


def test_how_far_streams_are_is_heard_of_those_that_it_has() -> None:
    world = World()
    link = world.link("pub")
    link.streams = {"pub/a": info("pub/a", "a")}
    link.recorded = {"other/b": info("other/b", "b")}
    a, b, x = (c.Tail(stream, 1, 0, 9) for stream in ("pub/a", "other/b", "x/y"))
    assert world.gate.told(link, c.Pong(1, 7, [a, b, x], [a, b, x])) == c.Pong(1, 7, [a], [b])
    assert world.gate.told(link, c.Bye(7, [a, b, x])) == c.Bye(7, [a])


# The allow-list --------------------------------------------------------------------------------


def test_who_may_do_less_than_before_is_cut_off_once_the_list_was_seen_twice(keys: Keys) -> None:
    user = keys.user("mallory")
    world = World(keys.folder)
    assert world.gate.on_tick(10.0) == 10.0 + LOOK_S
    revoke(keys.folder, "mallory")
    assert world.gate.on_tick(10.0 + LOOK_S / 2) == 10.0 + LOOK_S  # not yet
    world.gate.on_tick(11.0)
    assert world.cut == []
    world.gate.on_tick(12.0)
    world.gate.on_tick(13.0)
    assert world.cut == [({bytes.fromhex(user.decode())}, 12.0)]
    assert world.gate.grant(user) == access_control.NONE


def test_a_name_or_stream_that_everyone_would_refuse_is_told_at_the_start(
    keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    allow(keys.folder, Grant("shop", keys.own.key, ("quotes.**",)))
    World(keys.folder).gate.open()
    assert caplog.text.count("nobody will take it") == 1
    assert "orders.**" in caplog.text
    allow(keys.folder, Grant("store", keys.own.key))
    with pytest.raises(ConfigError, match="our own allow-list"):
        World(keys.folder).gate.open()


def test_a_refusal_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_control, "TOLD_MAX", 2)
    gate = World().gate
    for name in ("a", "a", "b", "a", "b", "c"):
        gate.tell_once("%s may not", name)
    assert [record.getMessage()[0] for record in caplog.records] == ["a", "b", "c"]


def test_shares_name_who_has_most() -> None:
    world = World()
    world.client(LINK, "desk")
    quota = Quota(10, 100)
    for link in (LINK, LINK, b"\x01"):
        quota.take(Owner("192.0.2.9", link))
    assert world.gate.shares({"subscriptions": quota}) == {
        "subscriptions": {
            "used": 3,
            "max": 100,
            "each_max": 10,
            "owners": {"desk": 2, "192.0.2.9#01": 1},
        }
    }
