"""meshmsg: brokerless direct messaging.  Peers talk to each other, and no loss is silent.

>>> import meshmsg
>>> with meshmsg.Peer("hello", bind="tcp://127.0.0.1:*") as peer:
...     position = peer.publish("greetings.world", {"text": "hi"})
"""

from typing import TYPE_CHECKING, Any

from meshmsg._batch import Batch
from meshmsg._codecs import Codec, JsonCodec, MsgpackCodec
from meshmsg._config import PeerConfig, Record, Stream, Tuning
from meshmsg._discovery import Discovery
from meshmsg._errors import (
    BindError,
    ClosedError,
    ConfigError,
    EventsLost,
    EventTooLarge,
    LogError,
    LogFull,
    LogLocked,
    MeshError,
    NameInUse,
    NoStream,
    PayloadError,
    PeerRefused,
    ProtocolError,
    PublishTimeout,
    ReplayError,
    TopicError,
    WaitTimeout,
)
from meshmsg._event import Event, Loss, Position
from meshmsg._multicast import Feed, Multicast
from meshmsg._peer import Peer, __version__
from meshmsg._presence import PeerChange, PeerInfo, PeerWatch
from meshmsg._security import Security
from meshmsg._subscription import Subscription
from meshmsg.recovery.ledger import Ledger, LedgerRow

if TYPE_CHECKING:
    from meshmsg._async_peer import AsyncPeer, AsyncSubscription
    from meshmsg._async_presence import AsyncPeerWatch

__all__ = [
    "AsyncPeer",
    "AsyncPeerWatch",
    "AsyncSubscription",
    "Batch",
    "BindError",
    "ClosedError",
    "Codec",
    "ConfigError",
    "Discovery",
    "Event",
    "EventTooLarge",
    "EventsLost",
    "Feed",
    "JsonCodec",
    "Ledger",
    "LedgerRow",
    "LogError",
    "LogFull",
    "LogLocked",
    "Loss",
    "MeshError",
    "MsgpackCodec",
    "Multicast",
    "NameInUse",
    "NoStream",
    "PayloadError",
    "Peer",
    "PeerChange",
    "PeerConfig",
    "PeerInfo",
    "PeerRefused",
    "PeerWatch",
    "Position",
    "ProtocolError",
    "PublishTimeout",
    "Record",
    "ReplayError",
    "Security",
    "Stream",
    "Subscription",
    "TopicError",
    "Tuning",
    "WaitTimeout",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # asyncio is a fifth of the import, and most commands and many services do without it.
    if name in ("AsyncPeer", "AsyncSubscription"):
        from meshmsg import _async_peer

        return getattr(_async_peer, name)
    if name == "AsyncPeerWatch":
        from meshmsg._async_presence import AsyncPeerWatch

        return AsyncPeerWatch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
