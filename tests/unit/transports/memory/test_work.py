"""Work for the members of groups in a simulated world."""

from meshmsg.transports.memory.platform import MemoryPlatform
from meshmsg.transports.memory.work import WorkInlet, WorkOutlet


def test_work_goes_to_the_member_while_it_is_connected() -> None:
    world = MemoryPlatform()
    outlet = WorkOutlet(world.machine("a"), 7, ["tcp://127.0.0.1:1"])
    assert outlet.member == 7
    assert not outlet.send(b"too early")
    inlet = WorkInlet(world.machine("b"))
    inlet.connect(outlet.addresses[0][1])
    world.sleep(1)
    assert outlet.send(b"work")
    assert inlet.recv_soon() == b"work"
    inlet.close()
    world.sleep(1)
    assert list(outlet.monitor.read()) == [True, False]
    assert not outlet.send(b"too late")
    outlet.close(0.0)
