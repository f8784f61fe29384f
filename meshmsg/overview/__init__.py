"""The mesh as one peer sees it: what all peers say of themselves, put together and with rates.

>>> from meshmsg.overview import MeshLook, MeshView
>>> look, view = MeshLook(peer), MeshView()                                    # doctest: +SKIP
>>> while True:                                                                # doctest: +SKIP
...     seen = view.take(look.look(), now=time.monotonic())
...     for stream in seen.streams:
...         print(stream.stream, stream.published_s, stream.behind)
...     time.sleep(look.pause_s)

`MeshLook` asks the peers that yours is connected to, and waits for them.  `MeshView` puts the
answers together, and remembers what is needed for rates and for peers that are gone.  A `View` is
the mesh at one moment: one row for each peer, stream, subscriber, group, log, loss and problem.
"""

from __future__ import annotations

from meshmsg.overview.ledgers import merge_ledgers
from meshmsg.overview.look import MeshLook
from meshmsg.overview.mesh import Look, MeshView
from meshmsg.overview.rows import (
    FlowRow,
    GroupRow,
    LedgerLine,
    LogRow,
    LossRow,
    PeerRow,
    ProblemRow,
    ReceiverRow,
    SenderRow,
    StreamRow,
    SubscriberRow,
    Totals,
    View,
)

__all__ = [
    "FlowRow",
    "GroupRow",
    "LedgerLine",
    "LogRow",
    "Look",
    "LossRow",
    "MeshLook",
    "MeshView",
    "PeerRow",
    "ProblemRow",
    "ReceiverRow",
    "SenderRow",
    "StreamRow",
    "SubscriberRow",
    "Totals",
    "View",
    "merge_ledgers",
]
