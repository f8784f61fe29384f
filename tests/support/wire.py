"""What a shell says by the control channel: a real sender without a socket."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

from meshmsg._runtime.control_sender import ControlSender
from meshmsg._wire.control import Message, decode_message
from meshmsg.recovery.stream.quotas import Owner

M = TypeVar("M", bound=Message)


class Wire:
    """What was sent, and a sender that sends here."""

    def __init__(self, unsent_bytes: int = 0) -> None:
        self.sent: list[tuple[Any, list[bytes]]] = []
        self.unsent_bytes = unsent_bytes
        self.counters: Counter[str] = Counter()
        self.sender = ControlSender(
            self.send, lambda link: self.unsent_bytes, lambda link: Owner("", link), self.counters
        )

    def send(self, to: Any, parts: list[bytes]) -> bool:
        self.sent.append((to, parts))
        return True

    def messages(self) -> list[Message]:
        return [decode_message(parts[0]) for _, parts in self.sent]

    def said(self, kind: type[M], to: Any = None) -> list[M]:
        """The messages of a kind, to all or to one."""
        sent = [parts[0] for whom, parts in list(self.sent) if to is None or whom == to]
        return [found for found in map(decode_message, sent) if isinstance(found, kind)]

    def frames(self) -> list[bytes]:
        """Frames that went along."""
        return [parts[1] for _, parts in list(self.sent) if len(parts) > 1]

    def clear(self) -> None:
        self.sent.clear()
