"""The short way in, for a frame that is next in order and wanted as a whole: nearly every one.

One function does what `Intake._on_message`, `StreamReceiver.on_frame`, `Intake.take` and what they
call do for such a frame.  It is there for the time of a single event: when a process wakes up, each
further function costs a microsecond or two, because none of it is in the processor's caches.  It
looks first and changes nothing unless all is as it should be, and then leaves everything as the
long way would have: a test takes the same frames both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshmsg._model.batch import Batch
from meshmsg._model.errors import ProtocolError
from meshmsg._native import COMPILED
from meshmsg._wire.frame import FRAME_MAGIC, Frame
from meshmsg.recovery.stream.loss_detector import NEVER

if TYPE_CHECKING:
    from meshmsg._receive.subscription_io import Intake
if COMPILED:
    from meshmsg import _speed


def take_next(intake: Intake, data: bytes, now: float, as_events: bool = True) -> bool:
    """Hand a message that just came to the consumer; `False` if the long way is needed.

    It is `intake.current` then, and its events, if they are wanted, are in `intake.iterator`.  With
    the intake's lock held, and nothing before it that the consumer has yet to take.
    """
    if data[8:12] != FRAME_MAGIC or intake._ready:
        return False
    try:
        frame = Frame(data)
    except ProtocolError:
        return False
    source = intake._by_wire.get(frame.stream)
    receiver = None if source is None else source.receiver
    if source is None or receiver is None or receiver.epoch != frame.epoch:
        return False
    stop = frame.stop
    first = frame.first
    if first != receiver.next or first != receiver.high or receiver._hint > stop:
        return False
    if receiver._pending or source.keeps.get(frame.topics) != "all":
        return False
    books = source.books
    batch = Batch(frame, books.stream, source.codec)
    iterator = iter(batch.events() if as_events else ())
    receiver.next = receiver.high = stop
    receiver._hint_since = NEVER
    source.data_at = now
    with intake._books_lock:
        books.delivered += frame.count
        books.consumed = stop
        intake._current_books = books
        intake.current = batch
        intake.iterator = iterator
    intake._note_consumed(source, len(data))
    return True


take_next_in_python = take_next
if COMPILED:
    take_next = _speed.take_next  # type: ignore[assignment]
