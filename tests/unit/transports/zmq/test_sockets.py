"""The sockets of one peer come from one context."""

from meshmsg.transports.zmq.per_publisher import ApartFanoutClient, ApartWorkInlet
from meshmsg.transports.zmq.sockets import ZmqSockets


def test_context_makes_all_sockets_of_a_peer() -> None:
    context = ZmqSockets()
    server = context.control_server()
    address = server.bind("tcp://127.0.0.1:*")
    fanout = context.fanout_server(10)
    fanout.bind(address)
    made = [
        context.control_client(address),
        context.fanout_client(10),
        context.fanout_client(10, apart=True),
        context.work_inlet(10),
        context.work_inlet(10, apart=True),
    ]
    assert isinstance(made[2], ApartFanoutClient)
    assert isinstance(made[4], ApartWorkInlet)
    work = context.work_outlet(7, [address])
    assert work.member == 7
    poller, wakeup = context.poller(), context.wakeup()
    wakeup.set()
    for socket in made:
        socket.close()
    for owner in (server, fanout, work):
        owner.close(0)
    assert poller.wait(0) == []
    wakeup.close()
    context.close()
