"""What a peer makes its sockets with in a simulated world."""

import pytest

from meshmsg._model.errors import ConfigError
from meshmsg.transports.memory.platform import MemoryPlatform
from meshmsg.transports.memory.sockets import MemorySockets
from meshmsg.transports.zmq.sockets import ZmqSockets


def test_there_is_a_verb_for_each_of_zeromq() -> None:
    verbs = {name for name in vars(ZmqSockets) if not name.startswith("_")}
    assert verbs - {"zap_server"} <= set(dir(MemorySockets))


def test_sockets_of_two_peers_meet() -> None:
    world = MemoryPlatform()
    a, b = (MemorySockets(world.machine(name), None) for name in "ab")
    server = a.control_server()
    client = b.control_client(server.bind("tcp://127.0.0.1:*"))
    poller = b.poller()
    poller.add(client.monitor)
    assert poller.wait(5.0) == [client.monitor]
    poller.remove(client.monitor)
    poller.remove(client.monitor)
    assert poller.wait(0.1) == []
    assert a.fanout_server(10).addresses == []
    assert b.fanout_client(10).recv() is None
    outlet = a.work_outlet(1, ["tcp://127.0.0.1:1"])
    assert not outlet.send(b"")
    assert b.work_inlet(1).recv() is None
    assert a.wakeup().fd.is_ready() is False
    assert a.user_of(b"x") == b""
    a.close()


def test_keys_are_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="no keys"):
        MemorySockets(MemoryPlatform().machine("a"), object())
