"""One peer that takes all it can get: memory and places are bounded, and others are served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from meshmsg import Peer, Security, Stream
from meshmsg._wire import control as c
from meshmsg.recovery.log import retention_holds as log_holds
from meshmsg.transports.zmq.control import split_parts
from meshmsg.transports.zmq.fanout import TOKENS_EACH_MAX
from meshmsg.transports.zmq.replay_socket import Disconnected, ReplaySocket
from tests.scenarios.security.attackers import GREETING, connected, part, pour, ready
from tests.scenarios.security.conftest import curve_of
from tests.support.remote import RemotePeer
from tests.support.waiting import wait_until

WAIT_S = 60.0
MIB = 1 << 20


class Honest:
    """A subscriber beside an attack: it takes numbered events as they are published."""

    def __init__(self, victim: RemotePeer, security: Security | None) -> None:
        self.victim = victim
        self.peer = Peer("honest", connect=victim.address, security=security)
        self.count = 0

    def __enter__(self) -> Honest:
        self.peer.open()
        self.events = self.peer.subscribe("a.**")
        self.victim.run("peer.wait_for_subscribers('a.b', timeout=60)")
        return self

    def __exit__(self, *_: object) -> None:
        self.events.close()
        self.peer.close()

    def check(self, count: int = 50) -> None:
        """Events come, all of them, in order."""
        code = f"for n in range({count}): peer.publish('a.b', {self.count} + n)"
        self.victim.run(code)
        got = [self.events.get(timeout=WAIT_S) for _ in range(count)]
        assert [event.data for event in got if event] == list(range(self.count, self.count + count))
        self.count += count


@contextmanager
def attacked(honest_keys: Security | None = None, **arguments: Any) -> Iterator[tuple[Any, Honest]]:
    with (
        RemotePeer("victim", streams=[{"topics": "a.**"}], **arguments) as victim,
        Honest(victim, honest_keys) as honest,
    ):
        honest.check()
        yield victim, honest
        honest.check()
        assert victim.eval("peer.stats()['counters'].get('io_errors', 0)") == 0


def counter(victim: RemotePeer, name: str) -> int:
    return int(victim.eval(f"peer.stats()['counters'].get({name!r}, 0)"))


def data_address(victim: RemotePeer) -> str:
    return str(victim.eval("peer._open_node()._fanout.addresses[0][1]"))


class Peak:
    """The most memory that a process had while this was watched, above what it had before."""

    def __init__(self, victim: RemotePeer) -> None:
        self._victim = victim
        self._before = victim.rss_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.grown = 0

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.grown = max(self.grown, self._victim.rss_bytes() - self._before)
            time.sleep(0.01)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("port", "size"), [("control", MIB), ("control", 1000), ("data", 400)], ids=str
)
def test_a_message_that_never_ends_does_not_fill_the_memory(port: str, size: int) -> None:
    with attacked() as (victim, honest):
        address, kind = victim.address, b"DEALER"
        if port == "data":
            address, kind = data_address(victim), b"SUB"
        with Peak(victim) as peak, connected(address, kind) as attacker:
            assert pour(attacker, bytes(size), 600 * MIB // size) < 600 * MIB // size
            honest.check()
        assert peak.grown < 300 * MIB
        assert counter(victim, "connections_ahead") >= 1


def test_many_messages_that_never_end_share_one_budget() -> None:
    """Each connection stays below what one may have."""
    with attacked() as (victim, honest), Peak(victim) as peak:
        connections = [connected(victim.address, b"DEALER") for _ in range(40)]
        found = [connection.__enter__() for connection in connections]
        try:
            for _ in range(5):
                for one in found:
                    pour(one, bytes(MIB), 1)
            honest.check()
            wait_until(lambda: counter(victim, "connections_ahead") >= 1, WAIT_S)
        finally:
            for connection in connections:
                connection.__exit__(None, None, None)
        assert peak.grown < 250 * MIB


def test_a_listed_peer_without_any_right_does_not_fill_the_memory(keys: Any, intruder: Any) -> None:
    victim_keys, honest_keys = keys.peer("victim"), keys.peer("honest")
    keys.peer("mallory", publish=(), subscribe=(), stats=False)
    with attacked(honest_keys, security={"key_dir": victim_keys.key_dir}) as (victim, honest):
        curve = curve_of(keys.mesh_key, keys.pair("mallory"))
        mallory = intruder.socket(zmq.DEALER, victim.address, curve)
        with Peak(victim) as peak:
            mallory.send_multipart([bytes(MIB)] * 400)
            wait_until(lambda: counter(victim, "connections_ahead") >= 1, WAIT_S)
            honest.check()
        assert peak.grown < 200 * MIB


def accepted(listener: socket.socket, kind: bytes) -> socket.socket:
    """A connection that was made to us, past its handshake."""
    one, _ = listener.accept()
    one.settimeout(WAIT_S)
    one.sendall(GREETING + ready(kind))
    while b"READY" not in one.recv(1 << 16):
        pass
    return one


def test_a_dialled_peer_whose_answers_never_end_is_cut() -> None:
    """Both its control channel and its data."""
    with ExitStack() as stack:
        control, data = (stack.enter_context(socket.socket()) for _ in range(2))
        for one in (control, data):
            one.settimeout(WAIT_S)
            one.bind(("127.0.0.1", 0))
            one.listen()
        address = f"tcp://127.0.0.1:{control.getsockname()[1]}"
        data_at = f"tcp://127.0.0.1:{data.getsockname()[1]}"
        victim = stack.enter_context(RemotePeer("victim", connect=address))
        victim.run("events = peer.subscribe('a.**')")
        link = stack.enter_context(accepted(control, b"ROUTER"))
        info = c.StreamInfo("bad/a.**", "a.**", 1, "block", "json", 1 << 20)
        welcome = c.Welcome("bad", 7, "default", [info], [(address, data_at)])
        wait_until(lambda: victim.eval("peer.stats()['links'][0]['state']") == "greeting", WAIT_S)
        link.sendall(part(c.encode_message(welcome), more=False))
        feed = stack.enter_context(accepted(data, b"XPUB"))
        for one in (feed, link):
            with Peak(victim) as peak:
                assert pour(one, bytes(MIB), 600) < 600
            assert peak.grown < 350 * MIB


def test_a_flood_of_large_repairs_to_a_slow_subscriber_is_not_cut() -> None:
    """What an honest publisher sends waits unread, far more than one message: all of it comes."""
    with Peer("pub", streams=[Stream("a.**", buffer_bytes="200MB")]) as pub:
        with RemotePeer("sub", connect=pub.address) as sub:
            sub.run("events = peer.subscribe('a.**', start='earliest')")
            pub.wait_for_subscribers("a.b", timeout=WAIT_S)
            for n in range(60):
                pub.publish("a.b", n.to_bytes(4, "big") + bytes(2 * MIB))  # each is fetched
            got = sub.eval(
                "[int.from_bytes(e.data[:4], 'big') for e in (events.get(60) for _ in range(60))"
                " if sum(i * i for i in range(100_000))]"
            )
            assert got == list(range(60))
            assert counter(sub, "connections_ahead") == 0
        assert "connections_ahead" not in pub.stats()["counters"]


def test_subscriptions_at_the_data_port_do_not_fill_the_memory_nor_stop_publishing() -> None:
    with attacked() as (victim, honest), zmq.Context() as context:
        stranger = context.socket(zmq.SUB)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.SNDHWM, 0)
        with Peak(victim) as peak:
            stranger.connect(data_address(victim))
            for number in range(20_000):
                stranger.subscribe(b"%08d" % number + bytes(400))
            wait_until(lambda: counter(victim, "bad_prefixes") >= 3, WAIT_S)
            honest.check(500)
        stranger.close()
        assert peak.grown < 100 * MIB


def test_more_streams_than_one_may_subscribe_to_are_refused() -> None:
    with attacked() as (victim, honest), zmq.Context() as context:
        victim.run("peer._open_node()._fanout.prefixes.each = 50")
        stranger = context.socket(zmq.SUB)
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(data_address(victim))
        for number in range(100):
            stranger.subscribe(b"%08d" % number)
        wait_until(lambda: counter(victim, "prefixes_full") >= 1, WAIT_S)
        stranger.close()
        honest.check()


class Greedy:
    """A peer by hand: it says hello and asks."""

    def __init__(self, socket: Any, name: str = "greedy", instance: int = 77) -> None:
        self.socket = socket
        self.say(c.Hello(name, instance, "default", nonce=b"n" * 16))
        assert isinstance(self.hear(), c.Welcome)

    def say(self, message: c.Message) -> None:
        self.socket.send(c.encode_message(message))

    def hear(self) -> c.Message:
        assert self.socket.poll(WAIT_S * 1000), "nothing was said"
        return c.decode_message(split_parts(self.socket.recv())[0])


@pytest.fixture
def dealer() -> Iterator[Any]:
    with zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 1)
        yield socket
        socket.close()


def test_repairs_that_nobody_reads_do_not_fill_the_memory(dealer: Any) -> None:
    streams = [{"topics": "a.**"}, {"topics": "big.**", "overflow": "drop_oldest"}]
    with RemotePeer("victim", streams=streams) as victim, Honest(victim, None) as honest:
        victim.run("for n in range(40): peer.publish('big.b', bytes(900_000))")
        epoch = victim.eval("peer._open_node().publisher._outlets['victim/big.**'].epoch")
        dealer.setsockopt(zmq.RCVBUF, 65536)
        dealer.connect(victim.address)
        greedy = Greedy(dealer)
        start = c.Start("victim/big.**", "earliest")
        greedy.say(c.Subscribe(5, ["big.**"], [start]))
        with Peak(victim) as peak:
            for number in range(1, 3000):
                greedy.say(c.Nack(5, "victim/big.**", epoch, [(0, 40)], number))
            wait_until(lambda: counter(victim, "repairs_put_off") > 1000, WAIT_S)
            honest.check()
        assert peak.grown < 120 * MIB


def test_who_reads_gets_all_its_repairs(dealer: Any) -> None:
    """A put-off repair comes when it is asked for again."""
    del dealer
    with Peer("pub", streams=[Stream("a.**", buffer_bytes="200MB")]) as pub:
        for n in range(50):
            pub.publish("a.b", n.to_bytes(4, "big") + bytes(MIB))
        with Peer("sub", connect=pub.address) as sub, sub.subscribe("a.**", start="earliest") as e:
            got = [e.get(timeout=WAIT_S) for _ in range(50)]
            assert [int.from_bytes(g.data[:4], "big") for g in got if g] == list(range(50))


def fill(greedy: Greedy, count: int, stream: str = "victim/a.**") -> None:
    for sub in range(1, count + 1):
        greedy.say(c.Subscribe(sub, ["a.**"], [c.Start(stream, "live")]))


def test_one_peer_does_not_take_all_subscriptions(dealer: Any) -> None:
    with attacked() as (victim, honest):
        quota = "peer._open_node().publisher.subscribers.quota"
        victim.run(f"{quota}.each = 100")
        dealer.connect(victim.address)
        greedy = Greedy(dealer)
        fill(greedy, 150)
        answer = greedy.hear()
        assert isinstance(answer, c.Unsubscribed)
        assert not answer.refused
        assert "you have 100 subscriptions" in answer.reason
        assert victim.eval(f"{quota}.used") == 101
        shown = victim.eval("peer.stats()['quotas']['subscriptions']")
        assert max(shown["owners"].values()) == 100
        with Honest(victim, None) as late:
            assert late.events is not None
        honest.check()


def test_subscriptions_of_streams_that_are_not_here_take_no_place(dealer: Any) -> None:
    with attacked() as (victim, _):
        dealer.connect(victim.address)
        greedy = Greedy(dealer)
        greedy.say(c.Subscribe(1, ["a.**"], []))
        greedy.say(c.Subscribe(2, ["a.**"], [c.Start("victim/none", "live")] * 64))
        answers = [greedy.hear(), greedy.hear()]
        assert all(isinstance(a, c.Unsubscribed) and "no such" in a.reason for a in answers)
        assert victim.eval("len(peer._open_node().publisher.subscribers.subs)") == 1


def test_a_listed_peer_without_any_right_takes_no_place(keys: Any, intruder: Any) -> None:
    victim_keys, honest_keys = keys.peer("victim"), keys.peer("honest")
    keys.peer("mallory", publish=(), subscribe=(), stats=False)
    with attacked(honest_keys, security={"key_dir": victim_keys.key_dir}) as (victim, _):
        curve = curve_of(keys.mesh_key, keys.pair("mallory"))
        socket = intruder.socket(zmq.DEALER, victim.address, curve)
        greedy = Greedy(socket, "mallory", keys.number("mallory"))
        greedy.say(c.Subscribe(1, ["a.**"], []))
        greedy.say(c.Subscribe(2, ["a.**"], [c.Start("victim/a.**", "live")]))
        for _ in range(2):
            answer = greedy.hear()
            assert isinstance(answer, c.Unsubscribed)
            assert answer.refused
        assert victim.eval("len(peer._open_node().publisher.subscribers.subs)") == 1


def test_where_all_places_are_taken_who_has_most_gives_one(dealer: Any) -> None:
    with RemotePeer("victim", streams=[{"topics": "a.**"}]) as victim:
        quota = "peer._open_node().publisher.subscribers.quota"
        victim.run(f"{quota}.total = 20")
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.connect(victim.address)
        fill(Greedy(dealer), 20)
        wait_until(lambda: victim.eval(f"{quota}.used") == 20, WAIT_S)
        with Honest(victim, None) as honest:
            honest.check()
        assert counter(victim, "subscriptions_displaced") == 1


def test_a_subscription_that_was_refused_asks_again_until_there_is_room(
    dealer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with RemotePeer("victim", streams=[{"topics": "a.**"}]) as victim:
        quota = "peer._open_node().publisher.subscribers.quota"
        victim.run(f"{quota}.each = 0")
        with Peer("late", connect=victim.address) as late, late.subscribe("a.**") as events:

            def refusals() -> dict[str, str]:
                found: dict[str, str] = late.stats()["subscriptions"][0]["refusals"]
                return found

            wait_until(lambda: "no room" in refusals().get("victim/a.**", ""), WAIT_S)
            assert "does not take our subscription" in caplog.text
            victim.run(f"{quota}.each = 10")
            victim.run("peer.wait_for_subscribers('a.b', timeout=60)")
            victim.run("peer.publish('a.b', 1)")
            event = events.get(timeout=WAIT_S)
            assert event is not None
            assert event.data == 1
            assert not refusals()


def test_a_subscribe_that_was_lost_is_said_again() -> None:
    with (
        Peer("pub", streams=[Stream("a.**")]) as pub,
        Peer("sub", connect=pub.address) as sub,
    ):
        subscribers, counters = pub._open_node().publisher.subscribers, sub._open_node().counters
        take = subscribers.on_subscribe

        def lose(*arguments: Any) -> None:
            if counters["subscriptions_repeated"]:
                take(*arguments)

        subscribers.on_subscribe = lose  # type: ignore[method-assign]
        with sub.subscribe("a.**") as events:
            pub.wait_for_subscribers("a.b", timeout=WAIT_S)
            pub.publish("a.b", 1)
            event = events.get(timeout=WAIT_S)
            assert event is not None
            assert event.data == 1


def test_cards_are_kept_as_far_as_there_is_room(dealer: Any) -> None:
    with attacked() as (victim, honest):
        dealer.connect(victim.address)
        greedy = Greedy(dealer)
        with Peak(victim) as peak:
            for serial in range(1, 4):
                names = [f"greedy/{n:08d}" for n in range(2000)]
                greedy.say(c.Here("greedy", 77, serial, streams=names))
            wait_until(lambda: counter(victim, "cards_shortened") >= 3, WAIT_S)
            honest.check()
        card = victim.eval("[p.streams for p in peer.peers() if p.name == 'greedy'][0]")
        assert sum(map(len, card)) < 64 * 1024
        assert peak.grown < 100 * MIB


def test_one_peer_does_not_begin_all_groups(dealer: Any) -> None:
    with attacked() as (victim, _):
        victim.run("meshmsg._groups.dispatcher.GROUPS_EACH_MAX = 3")
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.connect(victim.address)
        greedy = Greedy(dealer)
        start = [c.Start("victim/a.**", "live")]
        for sub in range(1, 5):
            greedy.say(c.Join(sub, f"g{sub}", ["a.**"], start, 1, 1.0, 1, "none"))
        while not isinstance(answer := greedy.hear(), c.Unjoined):
            pass
        assert answer.sub == 4
        assert "3 groups already" in answer.reason


def test_one_peer_does_not_hold_a_log_too_often_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_holds, "HOLDS_EACH_MAX", 2)
    with (
        Peer("pub", streams=[Stream("a.**", durability="log")], data_dir=tmp_path / "pub") as pub,
        Peer("greedy", connect=pub.address, data_dir=tmp_path / "greedy") as greedy,
        Peer("honest", connect=pub.address, data_dir=tmp_path / "honest") as honest,
        ExitStack() as stack,
    ):
        for number in range(2):
            held = greedy.subscribe("a.**", name=f"n{number}", start="committed", hold=True)
            stack.enter_context(held)
        pub.wait_for_subscribers("a.b", count=2, timeout=WAIT_S)
        stack.enter_context(greedy.subscribe("a.**", name="more", start="committed", hold=True))

        def words() -> str:
            return str(greedy.stats()["subscriptions"][2]["refusals"])

        wait_until(lambda: "'greedy' holds this log 2 times" in words(), WAIT_S)
        events = stack.enter_context(
            honest.subscribe("a.**", name="audit", start="committed", hold=True)
        )
        pub.wait_for_subscribers("a.b", count=3, timeout=WAIT_S)
        pub.publish("a.b", 1)
        event = events.get(timeout=WAIT_S)
        assert event is not None
        assert event.data == 1


def test_a_log_server_whose_answer_never_ends_is_cut() -> None:
    with socket.socket() as server, ExitStack() as stack:
        server.settimeout(WAIT_S)
        server.bind(("127.0.0.1", 0))
        server.listen()
        reader = ReplaySocket(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        stack.callback(reader.close)
        one = stack.enter_context(accepted(server, b"ROUTER"))
        poured: list[int] = []
        thread = threading.Thread(target=lambda: poured.append(pour(one, bytes(MIB), 600)))
        thread.start()
        with pytest.raises(Disconnected):
            reader.recv(WAIT_S)
        thread.join(WAIT_S)
        assert poured[0] < 600


def test_connection_with_more_tokens_than_a_subscription_has_is_cut() -> None:
    with Peer("pub", streams=[Stream("a.**")]) as pub, zmq.Context() as context:
        node = pub._open_node()
        greedy = context.socket(zmq.XSUB)
        greedy.setsockopt(zmq.LINGER, 0)
        greedy.connect(node._fanout.addresses[0][1])
        for sub in range(40):
            greedy.send(b"\1" + c.subscription_token(sub))
        wait_until(lambda: node._fanout.counters["prefixes_full"] > 0, WAIT_S)
        assert len(node.publisher.subscribers.tokens) <= TOKENS_EACH_MAX
        greedy.close()
