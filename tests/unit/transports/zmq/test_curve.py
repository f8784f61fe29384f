"""Keys of sockets: who listens judges, who dials shows its own."""

from __future__ import annotations

import pytest
import zmq

from meshmsg._model.errors import ConfigError
from meshmsg.transports.zmq import curve
from meshmsg.transports.zmq.context import Context, Monitor, bind
from meshmsg.transports.zmq.curve import CONTROL, DATA, Curve, Pair, pair_of
from meshmsg.transports.zmq.zap import ZapServer
from tests.support.waiting import wait_until

SECRET = bytes(range(1, 33))


def keys() -> Curve:
    return Curve(pair_of(b"d" * 32), pair_of(b"a" * 32), pair_of(SECRET), (b"x" * 32,))


def test_a_pair_is_computed_from_its_secret_and_hides_it() -> None:
    one = pair_of(SECRET)
    assert one == pair_of(SECRET)
    assert len(one.public) == 32
    assert one.public != pair_of(b"o" * 32).public
    assert "secret" not in repr(Pair(b"p" * 32, b"not to be seen"))


def test_without_curve_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve.zmq, "has", lambda name: False)
    with pytest.raises(ConfigError, match="no CURVE"):
        pair_of(SECRET)


@pytest.mark.parametrize("domain", [CONTROL, DATA, b"work:7"])
def test_a_listening_socket_has_the_key_of_its_kind_and_is_judged(domain: bytes) -> None:
    given = keys()
    expected = given.door if domain == CONTROL else given.data
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        given.listen(socket, domain)
        assert socket.getsockopt(zmq.CURVE_SERVER) == 1
        assert socket.getsockopt(zmq.ZAP_DOMAIN).rstrip(b"\0") == domain
        assert socket.getsockopt(zmq.ZAP_ENFORCE_DOMAIN) == 1
        assert pair_of(expected.secret).public == expected.public


@pytest.mark.parametrize("known", [True, False])
def test_who_dials_with_another_key_is_not_let_in(known: bool) -> None:
    given = keys()
    server_side, client_side = Context(given), Context(given)
    judge = ZapServer(server_side)
    server = server_side.socket(zmq.ROUTER, send_queue=9, recv_queue=9, listens=CONTROL)
    client = client_side.socket(zmq.DEALER, send_queue=9, recv_queue=9)
    monitor = Monitor(client)
    try:
        key = given.door.public if known else given.data.public
        client_side.connect(client, bind(server, "tcp://127.0.0.1:*"), key)
        seen: list[bool] = []

        def is_decided() -> bool:
            request = judge.recv()
            if request is not None:
                assert (request.domain, request.key) == (CONTROL, given.own.public)
                judge.accept(request, b"somebody")
            seen.extend(monitor.read())
            return bool(seen or monitor.failure)

        wait_until(is_decided)
        assert seen == ([True] if known else [])
    finally:
        monitor.close()
        judge.close()
        for context in (client_side, server_side):
            context.zmq.destroy(linger=0)
