"""Work goes to one member at its own port, and comes in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshmsg._model.errors import BindError
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.work_queue import WorkInlet, WorkOutlet
from tests.support.waiting import wait_until


@pytest.fixture
def context() -> Iterator[Context]:
    made = Context()
    yield made
    made.close()


def test_work_waits_for_its_member_and_comes_in_order(context: Context) -> None:
    outlet = WorkOutlet(context, 7, ["tcp://127.0.0.1:7000"])
    [(control, address)] = outlet.addresses
    assert control == "tcp://127.0.0.1:7000"
    assert not outlet.send(b"nobody is there")
    inlet = WorkInlet(context, 100)
    inlet.connect(address)
    wait_until(lambda: any(outlet.monitor.read()))
    wait_until(lambda: outlet.send(b"0"))  # the monitor may tell of a connection before it is used
    for n in range(1, 50):
        assert outlet.send(b"%d" % n)
    found: list[bytes] = []
    while len(found) < 50:
        data = inlet.recv()
        if data is None:
            inlet.wait(30.0)
        else:
            found.append(data)
    assert found == [b"%d" % n for n in range(50)]
    assert outlet.monitor.look() == 0
    inlet.close()
    wait_until(lambda: False in list(outlet.monitor.read()))
    outlet.close(0.0)


def test_each_member_has_a_port_of_its_own(context: Context) -> None:
    outlets = [WorkOutlet(context, n, ["tcp://127.0.0.1:7000"]) for n in (1, 2)]
    assert outlets[0].addresses[0][1] != outlets[1].addresses[0][1]
    for outlet in outlets:
        outlet.close(0.0)


def test_an_address_that_cannot_be_bound_leaves_nothing_open(context: Context) -> None:
    with pytest.raises(BindError):
        WorkOutlet(context, 7, ["tcp://127.0.0.1:7000", "tcp://203.0.113.7:7000"])
    # The context closes: no socket was left.
