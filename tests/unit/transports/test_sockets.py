"""Where a peer gets its sockets."""

from typing import Any

from meshmsg import _platform
from meshmsg.transports import sockets
from meshmsg.transports.zmq.sockets import ZmqSockets


class Other(_platform.Platform):
    class sockets:  # noqa: N801
        @staticmethod
        def context(curve: Any) -> str:
            return "other"

        @staticmethod
        def multicast_server(config: Any, interface: str) -> str:
            return f"server on {interface}"

        @staticmethod
        def multicast_client(group: Any, buffer_bytes: int, beside: Any) -> str:
            return f"client of {group}"


def test_sockets_are_those_of_zeromq_on_the_system() -> None:
    context = sockets.new_context(None, 1.0)
    assert type(context) is ZmqSockets
    context.close()


def test_platform_with_sockets_of_its_own_is_asked_for_them() -> None:
    with _platform.entered(Other()):
        assert sockets.new_context(None, 1.0) == "other"
        assert sockets.multicast_server(None, "lo") == "server on lo"  # type: ignore[arg-type]
        assert sockets.multicast_client("g", 1, 0.0, None) == "client of g"  # type: ignore[arg-type]
