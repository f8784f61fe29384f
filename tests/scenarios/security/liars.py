"""A recorder that lies: a peer that has recorded a stream and says every number of it wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshmsg import Peer, Subscription
from meshmsg._wire import control as c
from meshmsg._wire.frame import encode_frame
from tests.attack.mutate import raw

FAR = 1 << 62
STREAM = "pub/a.**"
TOPIC = "a.b"


class Liar:
    """Says what it likes over the connections of an open peer that records."""

    def __init__(self, peer: Peer) -> None:
        self.node = peer._open_node()
        assert self.node.recorder is not None
        self.lender = self.node.recorder.lender

    @property
    def place(self) -> tuple[int, int]:
        """The stream's true epoch and next number."""
        recorded = self.lender.log_of(STREAM)
        return (0, 0) if recorded is None else recorded.place

    def say(self, message: c.Message | dict[str, Any], frame: bytes | None = None) -> None:
        """To everybody who dialled: a message, or fields that make none."""
        said = raw(message) if isinstance(message, dict) else c.encode_message(message)
        parts = [said] + ([] if frame is None else [frame])
        for identity in list(self.node.reception.clients):
            self.node.send(identity, parts)

    def lie(self, kind: str, events: Subscription) -> None:
        """One lie of a kind, to everybody and in the name of this subscription's answer."""
        LIES[kind](self, events._intake.sub)

    def fall_silent(self) -> None:
        """Whatever is asked, nothing is answered any more."""
        self.lender._answer = lambda identity, message: None  # type: ignore[method-assign]

    # --- the lies ---

    def tail(self, epoch: int, next_: int) -> None:
        self.say(c.Pong(0, self.node.instance, [], [c.Tail(STREAM, epoch, 0, next_)]))
        self.say(c.Pong(0, self.node.instance, [c.Tail(STREAM, epoch, 0, next_)], []))

    def admit(self, sub: int, epoch: int, start: int, next_: int, **more: Any) -> None:
        said = {"t": "subscribed", "sub": sub, "stream": STREAM, "epoch": epoch, "origin": 0}
        said |= {"first": start, "next": next_, "start": start, "recorded": True}
        self.say(said | more)

    def gone(self, sub: int) -> None:
        epoch, next_ = self.place
        for ranges in ([(0, FAR)], [(next_, next_ + 1000)], [(0, 1), (5, 6)]):
            self.say(c.Gone(sub, STREAM, epoch, ranges, "expired", 1))

    def invent(self, sub: int, ahead: int) -> None:
        """Events that its publisher has yet to publish."""
        epoch, next_ = self.place
        wire_id = c.stream_wire_id(self.node.config.mesh, STREAM)
        frame = encode_frame(wire_id, epoch, next_ + ahead, TOPIC, [b"invented"] * 50, 1)
        self.say(c.Repair(sub, STREAM, 1), frame)

    def bye(self) -> None:
        self.say(c.Bye(self.node.instance + 1, [c.Tail(STREAM, self.place[0], 0, FAR)]))


def _nonsense(liar: Liar, sub: int) -> None:
    epoch, next_ = liar.place
    for start, stop, origin in ((FAR, 0, FAR), (0, FAR, FAR), (FAR, FAR, 0), (next_ + 9, 3, 7)):
        liar.admit(sub, epoch, start, stop, origin=origin)
        liar.admit(sub, epoch, start, stop, origin=origin, over=True)
        liar.admit(sub, epoch, start, stop, origin=origin, recorded=False)


LIES: dict[str, Callable[[Liar, int], None]] = {
    "tail": lambda liar, sub: liar.tail(liar.place[0], FAR),
    "tail of a later epoch": lambda liar, sub: liar.tail(liar.place[0] + 9, FAR),
    "later epoch": lambda liar, sub: liar.admit(sub, liar.place[0] + 9, 0, FAR),
    "later epoch that is over": lambda liar, sub: liar.admit(
        sub, liar.place[0] + 9, 0, FAR, over=True
    ),
    "earlier epoch": lambda liar, sub: liar.admit(sub, liar.place[0] - 9, 0, FAR, over=True),
    "end of this epoch": lambda liar, sub: liar.admit(sub, liar.place[0], 0, FAR, over=True),
    "nonsense": _nonsense,
    "gone": lambda liar, sub: liar.gone(sub),
    "events to come": lambda liar, sub: liar.invent(sub, 0),
    "events far ahead": lambda liar, sub: liar.invent(sub, FAR // 2),
    "good-bye": lambda liar, sub: liar.bye(),
}
