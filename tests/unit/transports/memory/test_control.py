"""The control channel of a simulated world."""

from meshmsg.transports.memory.control import QUEUE_MESSAGES, ControlClient, ControlServer, host_of
from meshmsg.transports.memory.platform import MemoryPlatform
from meshmsg.transports.zmq.control import LARGE_BYTES
from meshmsg.transports.zmq.unread_limit import limits_of


class Pair:
    def __init__(self) -> None:
        self.world = MemoryPlatform()
        self.server = ControlServer(self.world.machine("a"))
        self.door = self.server.watched(limits_of(1, 1))
        address = self.server.bind("tcp://127.0.0.1:*")
        self.client = ControlClient(self.world.machine("b"), address)
        self.world.sleep(1)


def test_question_and_answer() -> None:
    pair = Pair()
    assert list(pair.client.monitor.read()) == [True]
    assert pair.client.send([b"question", b"frames"])
    pair.server.wait(1.0)
    request = pair.server.recv()
    assert request is not None
    assert (request.parts, request.host) == ([b"question", b"frames"], "127.0.0.1")
    assert pair.server.recv() is None
    assert pair.server.may_queue(request.identity, [b"answer"])
    assert pair.server.send(request.identity, [b"answer"])
    assert not pair.server.send(b"nobody", [b"answer"])
    pair.world.sleep(1)
    assert pair.client.recv() == [b"answer"]
    assert pair.client.recv() is None
    assert pair.client.look() == pair.client.monitor.look() == 0


def test_door_knows_who_is_there_and_who_has_said_nothing() -> None:
    pair = Pair()
    gone: list[int] = []
    pair.door.gone = gone.append
    pair.door.read()
    (number,) = pair.door.open
    assert list(pair.door.silent) == [number]
    assert pair.door.superfluous(0) == [number]
    assert pair.door.superfluous(1) == pair.door.look(0) == []
    pair.door.spoke(number, 1)
    assert not pair.door.silent
    pair.client.close()
    pair.world.sleep(1)
    pair.door.read()
    assert gone == [number]
    pair.door.close()


def test_large_answers_are_counted_until_they_have_left() -> None:
    pair = Pair()
    pair.client.send([b"q"])
    pair.server.wait(1.0)
    request = pair.server.recv()
    assert request is not None
    large = [bytes(LARGE_BYTES)]
    assert pair.server.may_queue(request.identity, large)
    assert pair.server.send(request.identity, large)
    assert pair.server.unsent.of(request.identity) == LARGE_BYTES
    pair.world.sleep(1)
    assert pair.server.unsent.of(request.identity) == 0


def test_full_queue_takes_no_more() -> None:
    pair = Pair()
    pair.client.send([b"q"])
    pair.server.wait(1.0)
    request = pair.server.recv()
    assert request is not None
    taken = [pair.server.send(request.identity, [b"a"]) for _ in range(2 * QUEUE_MESSAGES + 1)]
    assert taken[:-1] == [True] * (2 * QUEUE_MESSAGES)
    assert not taken[-1]


def test_end_of_the_server_is_heard() -> None:
    pair = Pair()
    pair.server.close(0.0)
    pair.world.sleep(1)
    assert list(pair.client.monitor.read()) == [True, False]
    assert pair.client.monitor.ended_at is not None
    assert not pair.client.send([b"q"])


def test_host_of_an_address() -> None:
    assert host_of("tcp://[::1]:5") == "::1"
