"""The seals of a peer's multicast streams, and who gets their keys.

Part of `PublisherSide`, and used with its lock held.  Where an allow-list tells peers apart, the
keys of a stream are drawn at random and handed to its subscribers over the control channel: nobody
else can compute them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from meshmsg._access.multicast_keys import SendingSeal
from meshmsg._model.security_config import Security
from meshmsg._wire.control import Rekey

if TYPE_CHECKING:
    from meshmsg._publish.publisher import PublisherSide


class SealKeeper:
    """Makes seals and hands out their keys."""

    def __init__(self, side: PublisherSide, security: Security | None) -> None:
        self._side = side
        self._security = security

    def seal(self, stream: str, wire_id: int) -> SendingSeal | None:
        """The seal of a stream that is declared; `None` where there is no security."""
        if self._security is None:
            return None
        given = self._security.key_dir is not None
        return SendingSeal(self._security, wire_id, partial(self._give, stream) if given else None)

    def _give(self, stream: str, generation: int, key: bytes) -> None:
        """Those who are cut off are not among the subscriptions any more."""
        for remote in self._side.subscribers.subs.values():
            if stream in remote.admitted and remote.absence.since is None:
                self._side._post(remote.link, Rekey(remote.sub, stream, [(generation, key)]))

    def renew(self, now: float) -> None:
        """Somebody may read less than before: all streams get other keys."""
        with self._side._lock:
            for outlet in self._side._outlets.values():
                if outlet.packets is not None and outlet.packets.seal is not None:
                    outlet.packets.seal.renew(now)
