"""What this peer says to others by the control channel, from any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from meshmsg._model.message_fields import NACK_RANGES_MAX
from meshmsg._wire.control import Gone, Message, Nack, Page, Repair, encode_message, encode_pages
from meshmsg.recovery.stream.quotas import Owner

T = TypeVar("T")

#: No further repairs while so much waits to leave for whoever asks.
REPAIR_UNSENT_BYTES_MAX = 16 * 1024 * 1024


class ControlSender:
    """Sends control messages: to those who dialled us by their identities, to others by links."""

    def __init__(
        self,
        send: Callable[[Any, list[bytes]], bool],
        unsent_bytes: Callable[[bytes], int],
        owner_of: Callable[[bytes], Owner],
        counters: Counter[str],
    ) -> None:
        self.send = send
        self.unsent_bytes = unsent_bytes  #: what waits to leave for one that dialled us
        self.owner_of = owner_of  #: whose places that one takes
        self.counters = counters

    def post(self, to: Any, message: Message | bytes) -> None:
        """Queue a control message."""
        self.send(to, [message if isinstance(message, bytes) else encode_message(message)])

    def post_pages(
        self, to: Any, make: Callable[[list[T], Page], Message], entries: Sequence[T]
    ) -> None:
        """Queue what is to be said of some entries (`encode_pages`)."""
        for page in encode_pages(make, entries):
            self.send(to, [page])

    def may_repair(self, link: bytes) -> bool:
        """Return False while too much is unsent to whoever asks; it will ask again."""
        if self.unsent_bytes(link) < REPAIR_UNSENT_BYTES_MAX:
            return True
        self.counters["repairs_put_off"] += 1
        return False

    def answer_nack(
        self,
        link: bytes,
        message: Nack,
        frames: list[bytes],
        gone: dict[str, list[tuple[int, int]]],
    ) -> None:
        """Send repairs, and what cannot be repaired."""
        if not self.may_repair(link):
            return
        sub, stream = message.sub, message.stream
        parts = [[encode_message(Repair(sub, stream, 0)), frame] for frame in frames]
        last: Repair | Gone = Repair(sub, stream, message.number)
        for reason, ranges in gone.items():
            for at in range(0, len(ranges), NACK_RANGES_MAX):
                some = ranges[at : at + NACK_RANGES_MAX]
                last = Gone(sub, stream, message.epoch, some, reason, message.number)
                parts.append([encode_message(msgspec.structs.replace(last, answers=0))])
        if parts:
            parts[-1][0] = encode_message(last)  # the last one says that the answer is complete
        for part in parts:
            self.send(link, part)
        self.counters["repaired_frames"] += len(frames)
