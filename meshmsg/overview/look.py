"""`MeshLook`: asks the peers of a mesh for their figures, on a thread of its caller's.

Only peers that are connected can be asked, each once for all who look through this one.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from typing import Any

from meshmsg._model.errors import ClosedError
from meshmsg._peer.peer import PeerBase, ask_all, ledger_of
from meshmsg._peer.presence import PeerChange
from meshmsg.overview.mesh import Look

#: For all peers together: one that takes longer counts as silent.
ANSWER_S = 2.0
#: How often somebody may look.
PERIOD_S = 1.0
#: What looking may take of the time of one processor; from a large mesh, figures come less often.
WORK_SHARE = 0.05
#: The ledger, for which peers ask their subscribers first, is asked for each so many looks.
LEDGER_EACH = 5
#: Good-byes that nobody has looked at yet.
CHANGES_MAX = 1_000


class MeshLook:
    """Looks at the mesh of an open peer; does not keep that from being collected.

    >>> look = MeshLook(peer)                                                 # doctest: +SKIP
    >>> view = MeshView().take(look.look(), now=time.monotonic())             # doctest: +SKIP
    """

    def __init__(self, peer: PeerBase) -> None:
        self._peer = weakref.ref(peer)
        self._changes: deque[tuple[str, str]] = deque(maxlen=CHANGES_MAX)
        changes = self._changes

        def note(change: PeerChange) -> None:
            changes.append((change.kind, change.peer.name))

        self._stop = peer.on_peers(note)
        self._looks = 0
        self.pause_s = PERIOD_S  #: until the next look

    def look(self) -> Look:
        """Ask all peers, and wait for their answers; raises `ClosedError` when the peer is."""
        peer = self._peer()
        if peer is None:
            raise ClosedError("the peer is gone")
        worked = time.thread_time()
        with_ledger = self._looks % LEDGER_EACH == 0
        self._looks += 1
        answers = self._answers(peer, "stats")
        ledgers = self._answers(peer, "ledger") if with_ledger else None
        if ledgers is not None:
            rows = [row.as_dict() for row in ledger_of(peer, ANSWER_S).rows]
            ledgers.append({"peer": peer.name, "rows": rows})
        changes = [self._changes.popleft() for _ in range(len(self._changes))]
        found = Look(peer.stats(), answers, changes, ledgers)
        self.pause_s = max(PERIOD_S, (time.thread_time() - worked) / WORK_SHARE)
        return found

    def close(self) -> None:
        """Look no more.  Safe to call again."""
        self._stop()

    @staticmethod
    def _answers(peer: PeerBase, what: str) -> list[dict[str, Any]]:
        answers = ask_all(peer, what, ANSWER_S)
        return [answer for answer in answers.values() if isinstance(answer, dict)]
