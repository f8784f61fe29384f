"""A drain: a peer takes no more work, its application finishes what it has, and it closes.

On a thread of its own, so that the peer works on meanwhile: acknowledgements leave, streams are
read to their end.  A peer elsewhere that is dead holds nobody up for longer than the time allows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from meshmsg import _platform
from meshmsg._groups.consumer import Member
from meshmsg._runtime.guard import Guard

log = logging.getLogger("meshmsg.audit")

#: How often it is looked whether the application has finished.
LOOK_S = 0.01
#: How long a drain may take, unless the operator says otherwise.
WITHIN_S = 30.0


class Draining:
    """Ends one peer in order, once."""

    def __init__(
        self, name: str, members: Mapping[int, Member], label: Callable[[int], str], guard: Guard
    ) -> None:
        self._members = members
        self._label = label
        self._guard = guard
        self._within_s = WITHIN_S
        self._is_begun = False
        self.close: Callable[[float], None] = lambda deadline: None  #: the peer, by that time
        self._thread = _platform.new_thread(self._run, f"{name} drain")

    def begin(self, within_s: float, dry_run: bool) -> list[dict[str, Any]]:
        """Begin, unless that was asked for before; returns which members have what in hand."""
        rows = [
            {"member": self._label(member.sub), "in_hand": member.in_hand}
            for member in list(self._members.values())
        ]
        if not dry_run and not self._is_begun:
            self._is_begun = True
            self._within_s = within_s or WITHIN_S
            self._thread.start()
        return [*rows, {"drains_within_s": within_s or WITHIN_S}]

    def _run(self) -> None:
        deadline = _platform.monotonic() + self._within_s
        try:
            members = list(self._members.values())
            for member in members:
                member.rest()
            while any(one.in_hand and not one.closed for one in members):
                if _platform.monotonic() >= deadline:
                    count = sum(one.in_hand for one in members if not one.closed)
                    log.warning("drained with %d events in hand, which go to others", count)
                    break
                _platform.sleep(LOOK_S)
            self.close(deadline)
        except Exception:
            self._guard.failed("a drain")
