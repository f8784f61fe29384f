"""SP sockets of nanomsg and NNG, through pynng: bytes out, bytes in, many a call."""

from __future__ import annotations

from collections.abc import Sequence

import pynng

from meshmsg._model.errors import BindError

_SOCKETS = {"pub": pynng.Pub0, "sub": pynng.Sub0, "push": pynng.Push0, "pull": pynng.Pull0}
#: Messages that wait in a socket, in each direction.
QUEUE_MESSAGES = 1_024


class SpSocket:
    """One socket, listening at an address or dialling it again and again."""

    def __init__(
        self,
        kind: str,
        url: str,
        *,
        listen: bool,
        prefixes: Sequence[bytes] = (b"",),
        message_bytes_max: int = 0,
    ) -> None:
        self._url = url
        self._socket = _SOCKETS[kind]()
        try:
            if kind in ("sub", "pull"):
                self._socket.recv_buffer_size = QUEUE_MESSAGES
                self._socket.recv_max_size = message_bytes_max
            else:
                # What a socket holds is gone with it, so push holds nothing: sending waits until
                # a connection takes the message.
                self._socket.send_buffer_size = QUEUE_MESSAGES if kind == "pub" else 0
            if kind == "sub":
                for prefix in prefixes:
                    self._socket.subscribe(prefix)
            if listen:
                self._socket.listen(url)
            else:
                self._socket.dial(url, block=False)
        except (pynng.NNGException, ValueError, OSError) as error:
            self._socket.close()
            raise BindError(url, str(error)) from None

    @property
    def peers(self) -> int:
        """Connections that are up."""
        return len(self._socket.pipes)

    @property
    def url(self) -> str:
        """Where it listens, with the port that it got; or what it dials."""
        listeners = self._socket.listeners
        return str(listeners[0].url) if listeners else self._url

    def receive(self, most: int, timeout_s: float) -> list[bytes]:
        """What is there, up to so many, as soon as there is one; empty when the time is up."""
        messages: list[bytes] = []
        self._socket.recv_timeout = max(1, int(timeout_s * 1000))
        try:
            messages.append(self._one(block=True))
            while len(messages) < most:
                messages.append(self._one(block=False))
        except (pynng.Timeout, pynng.TryAgain):
            pass
        except pynng.NNGException:
            if not messages:  # or those would be gone with it: it comes again at the next call
                raise
        return messages

    def _one(self, *, block: bool) -> bytes:
        try:
            return bytes(self._socket.recv(block=block))
        except RuntimeError:  # pynng 0.9 fails over a message without any bytes
            return b""

    def send(self, message: bytes, timeout_s: float) -> bool:
        """Whether the socket took it in time; of a `pub` socket that says nothing at all."""
        self._socket.send_timeout = max(1, int(timeout_s * 1000))
        try:
            self._socket.send(message)
        except (pynng.Timeout, pynng.TryAgain):
            return False
        return True

    def close(self) -> None:
        """Free it; what waits in it to be sent is gone."""
        self._socket.close()
