"""What work groups have done, on disk: saved by a thread of its own, many acknowledgements at once.

Belongs here: when a group of a durable stream is saved, and what is read at the next start.  Does
not belong here: the file (`recovery.groups.store`), and what a group does with it
(`recovery.groups.group`).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshmsg import _platform
from meshmsg._groups.seat import Seat
from meshmsg._model.config import check_group
from meshmsg._model.errors import ConfigError, LogError
from meshmsg._runtime.guard import Guard
from meshmsg.recovery.groups.numbering import Line
from meshmsg.recovery.groups.resume import line_of, record_of
from meshmsg.recovery.groups.store import GroupRecord, GroupStore
from meshmsg.recovery.log.reader import LogReader

if TYPE_CHECKING:
    from meshmsg._publish.published_stream import Outlet

log = logging.getLogger("meshmsg.peer")

#: The first is saved at once; those that follow wait about this long for company ...
SAVE_S = 0.02
#: ... or, where a save takes long, for so many times as long: saving stays a small part of it all.
SAVE_TIMES = 4
#: Never longer: members wait for it who come, and who leave.
PAUSE_MAX_S = 2.0
#: How often the cursor that holds retention follows.
HOLD_S = 1.0
RETRY_S = 1.0
#: How often to see whether an operator has dropped a group.
LOOK_S = 2.0


@dataclass(slots=True)
class Saved:
    """A group as it was when it was saved: or was to be, if that is not `good`."""

    seat: Seat
    number: int
    record: GroupRecord
    mark: int
    names: frozenset[int]
    heard: dict[int, tuple[bytes, int]]
    good: bool = False

    @property
    def whole(self) -> bool:
        """Whether all that is settled is on disk."""
        return self.record.whole


class GroupKeeper:
    """Saves the groups of one peer's durable streams."""

    def __init__(
        self,
        name: str,
        lock: threading.RLock,
        counters: Counter[str],
        on_saved: Callable[[Saved], None],
    ) -> None:
        self._on_saved = on_saved
        self._lock = lock  # the publishing side's
        self._counters = counters
        self._disk = _platform.new_lock()  # one at a time writes
        self._wanted = _platform.new_event()
        self._stopping = _platform.new_event()
        self._hurried = _platform.new_event()  # somebody waits: no pause before the next save
        self._dirty: dict[int, Seat] = {}
        self._stores: dict[str, GroupStore] = {}
        self._held_at: dict[int, float] = {}
        self._saved: dict[int, Seat] = {}
        self._failing = False
        self.guard = Guard(f"{name} groups", counters, "group_save_failures")
        self._thread = _platform.new_thread(self._run, f"{name} groups")

    # --- with the publishing side's lock held ---

    def load(self, outlet: Outlet) -> list[tuple[GroupRecord, Line]]:
        """The groups that an earlier start has left, and the line that each goes on with."""
        if outlet.log is None:
            return []
        store = self._store(outlet)
        records = []
        found = store.load()
        problems = store.problems
        for record in found:
            try:
                check_group("group", record.name)
                records.append(record)
            except ConfigError as error:  # of an earlier version, which took longer names
                problems.append(f"{error}: its file is left as it is")
        for problem in problems:
            self._counters["groups_damaged"] += 1
            log.error("%s", problem)
        if not records:
            return []
        with LogReader(outlet.log.folder) as reader:
            epochs = reader.journal.epochs
        origin = outlet.sender.origin
        return [(record, line_of(record, epochs, outlet.epoch, origin)) for record in records]

    def _store(self, outlet: Outlet) -> GroupStore:
        assert outlet.log is not None
        store = self._stores.get(outlet.stream)
        if store is None:
            store = self._stores[outlet.stream] = GroupStore(outlet.log.folder, outlet.stream)
        return store

    def want(self, seat: Seat, *, at_once: bool = False) -> None:
        """Something of a group has changed: have it saved soon, or `at_once`: its members wait."""
        if not seat.kept:
            return
        if at_once:
            self._hurried.set()
        if id(seat) not in self._dirty:
            self._dirty[id(seat)] = seat
            if not self._wanted.is_set():
                self._call()

    def _call(self) -> None:
        """Have the thread save what is dirty."""
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()
        self._wanted.set()

    def save_now(self, seat: Seat) -> None:
        """A group is there from now on: what happens next is for it, whatever happens to us."""
        if seat.kept:
            self._dirty[id(seat)] = seat
            self._save()
            if not self._thread.is_alive() and not self._stopping.is_set():
                self._thread.start()

    def may_drop(self, seat: Seat, *, wanted: bool) -> bool:
        """Whether a group that somebody has removed on disk can go; else it is put back."""
        if not wanted and not seat.declared:
            return True
        reason = "its stream declares it" if seat.declared else "it has members"
        log.warning("group %s was dropped on disk, and is put back: %s", seat.group.name, reason)
        seat.dropped = False
        self._saved.pop(id(seat), None)
        self.want(seat)
        return False

    def replace(self, seat: Seat) -> None:
        """A group goes on in another seat, which is saved over this one."""
        seat.kept = False
        self._dirty.pop(id(seat), None)
        self._held_at.pop(id(seat), None)
        self._saved.pop(id(seat), None)

    def forget(self, seat: Seat) -> None:
        """A group was given up."""
        if not seat.kept:
            return
        self.replace(seat)
        if seat.dropped:
            return
        with self._disk:  # whoever has it does not wait for the publishing side's lock
            try:
                self._store(seat.outlet).remove(seat.group.name)
            except LogError as error:
                self._fail(error)

    # --- on the thread ---

    def _run(self) -> None:
        self.guard.drive(self._turn, self._stopping.wait)
        self._stopping.set()

    def _turn(self) -> bool:
        """Save what is dirty, or look whether a group was dropped; `False` when it is over."""
        wanted = self._wanted.wait(LOOK_S)
        if self._stopping.is_set():
            return False
        if not wanted:
            self._look()
            return True
        began = _platform.monotonic()
        self._wanted.clear()
        good = self._save()
        spent = _platform.monotonic() - began
        if good:
            self._hurried.wait(max(SAVE_S, min(SAVE_TIMES * spent, PAUSE_MAX_S)))
        else:
            self._stopping.wait(RETRY_S)
        self._hurried.clear()
        return not self._stopping.is_set()

    def _save(self) -> bool:
        """Save what has changed; returns whether all of it was."""
        with self._lock:
            dirty, self._dirty = self._dirty, {}
            saves = []
            for seat in dirty.values():
                seat.save_number += 1
                names, heard = frozenset(seat.names), seat.heard
                mark = seat.group.mark(sum(seat.entering.values()))
                record = record_of(seat.group, names, mark)
                saves.append(Saved(seat, seat.save_number, record, mark, names, heard))
                seat.heard = {}
        problem: Exception | None = None
        try:
            with self._disk:
                for save in saves:
                    # Given up meanwhile, or saved as it was later by somebody else.
                    if save.seat.kept and save.number > save.seat.saved_number:
                        save.seat.saved_number = save.number
                        save.good = self._save_one(save.seat, save.record)
        except LogError as error:
            problem = error
            self._fail(error)
        except Exception as error:
            problem = error
            self.guard.failed("the saving of groups")
        with self._lock:
            for save in saves:
                self._on_saved(save)
            if problem is not None:
                self._dirty.update({id(seat): seat for seat in dirty.values() if seat.kept})
                self._call()  # which there was no need of, if this was the first save of all
        self._failing = problem is not None
        return problem is None

    def _look(self) -> None:
        """The file is the truth: a group without one has been dropped."""
        for seat in list(self._saved.values()):
            if seat.kept and not self._store(seat.outlet).has(seat.group.name):
                seat.dropped = True  # whoever has the lock sees to it

    def _save_one(self, seat: Seat, record: GroupRecord) -> bool:
        """`False` if somebody has dropped the group."""
        store = self._store(seat.outlet)
        if seat.dropped or (id(seat) in self._saved and not store.has(record.name)):
            seat.dropped = True
            return False
        now = _platform.monotonic()
        held_at = self._held_at.get(id(seat))
        if held_at is None and not store.has(record.name):
            # A new group holds the log from its first moment on.
            store.hold(record.name, record.floor, _platform.time_ns())
            self._held_at[id(seat)] = held_at = now
        if seat.dead is not None and seat.dead.log is not None:
            # First what it gave up: settled and nowhere would be lost, if the machine fails now.
            seat.dead.log.flush()
        store.save(record)
        self._saved[id(seat)] = seat
        self._counters["groups_saved"] += 1
        if held_at is None or now - held_at >= HOLD_S or self._stopping.is_set():
            # After the file: should we be killed in between, what that still has to do is held.
            store.hold(record.name, record.floor, _platform.time_ns())
            self._held_at[id(seat)] = now
        return True

    def _fail(self, error: LogError) -> None:
        self._counters["group_save_failures"] += 1
        if not self._failing:
            log.error("%s: until it can be, a restart brings work again that was done", error)
        self._failing = True

    def close(self) -> None:
        """Save what is left, and end the thread; without the publishing side's lock."""
        self._stopping.set()
        self._wanted.set()
        self._hurried.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._dirty:
            self._save()
