"""Fan-out in a simulated world."""

import pytest

from meshmsg._model.errors import ClosedError
from meshmsg.transports.memory.fanout import FanoutClient, FanoutServer
from meshmsg.transports.memory.network import Signal
from meshmsg.transports.memory.platform import MemoryPlatform

STREAM, OTHER, TOKEN = b"stream-1", b"stream-2", b"MMS1" + bytes(8)


class Pair:
    def __init__(self, queue_frames: int = 100) -> None:
        self.world = MemoryPlatform()
        self.server = FanoutServer(self.world.machine("a"), queue_frames)
        self.server.bind("tcp://127.0.0.1:1")
        self.address = self.server.addresses[0][1]

    def client(self, *prefixes: bytes) -> FanoutClient:
        client = FanoutClient(self.world.machine("b"))
        for prefix in prefixes:
            client.subscribe(prefix)
        client.connect(self.address)
        client.connect(self.address)  # a second time does nothing
        self.world.sleep(1)
        return client


def test_frames_go_to_who_subscribed() -> None:
    pair = Pair()
    one, two = pair.client(TOKEN, STREAM), pair.client(OTHER)
    assert sorted(pair.server.drain()) == [(True, TOKEN), (True, STREAM), (True, OTHER)]
    assert pair.server.drained
    pair.server.send(STREAM + b" frame")
    pair.world.sleep(1)
    assert one.recv_soon() == STREAM + b" frame"
    assert one.recv() is None
    assert two.recv_soon() is None


def test_first_and_last_subscription_to_a_prefix_are_told() -> None:
    pair = Pair()
    one, two = pair.client(STREAM), pair.client(STREAM)
    assert pair.server.drain() == [(True, STREAM)]
    one.unsubscribe(STREAM)
    pair.world.sleep(1)
    assert pair.server.drain() == []
    two.close()
    pair.world.sleep(1)
    assert pair.server.drain() == [(False, STREAM)]
    pair.server.forget(1)


def test_new_connection_says_again_what_is_wanted() -> None:
    pair = Pair()
    client = pair.client(STREAM)
    pair.server.drain()
    for connection in pair.world.network.connections():
        connection.break_off()
    assert pair.server.drain() == [(False, STREAM)]
    pair.world.sleep(1)
    assert pair.server.drain() == [(True, STREAM)]
    client.subscribe(OTHER)
    pair.world.sleep(1)
    assert pair.server.drain() == [(True, OTHER)]


def test_full_queue_and_faults_lose_frames() -> None:
    pair = Pair(queue_frames=2)
    client = pair.client(STREAM)
    for n in range(6):
        pair.server.send(STREAM + b"%d" % n)
    assert pair.server.overflows == 2
    pair.server.fault = lambda message: True
    pair.server.send(STREAM)
    assert pair.server.counters["injected_drops"] == 1
    pair.world.sleep(1)
    assert [client.recv() for _ in range(5)] == [*(STREAM + b"%d" % n for n in range(4)), None]


def test_waiting_ends_with_a_message_a_call_or_another_signal() -> None:
    pair = Pair()
    client = pair.client(STREAM)
    begun = pair.world.scheduler.now
    client.wakeup.set()
    client.wait(100.0)
    extra = Signal(pair.world.scheduler, lambda: True)
    client.watch(extra)
    client.wait(100.0)
    client.unwatch(extra)
    pair.server.send(STREAM)
    client.wait(100.0)
    assert pair.world.scheduler.now < begun + 1
    assert client.look() == 0


def test_who_leaves_loses_what_was_not_read() -> None:
    pair = Pair()
    client = pair.client(STREAM)
    pair.server.send(STREAM)
    pair.world.sleep(1)
    client.disconnect(pair.address)
    assert client.recv() is None


def test_killed_machine_refuses() -> None:
    pair = Pair()
    client = pair.client(STREAM)
    pair.world.kill("a")
    pair.world.kill("b")
    with pytest.raises(ClosedError):
        pair.server.send(STREAM)
    with pytest.raises(ClosedError):
        client.wait(1.0)
    with pytest.raises(ClosedError):
        client.recv_soon()
