"""meshmsg: brokerless direct messaging.  Peers talk to each other, and no loss is silent.

Names are loaded with their first use: most programs need a few of them, and a command that is
interrupted while it starts ends at once.

>>> import meshmsg
>>> with meshmsg.Peer("hello", bind="tcp://127.0.0.1:*") as peer:
...     position = peer.publish("greetings.world", {"text": "hi"})
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshmsg._async_peer import AsyncPeer, AsyncSubscription
    from meshmsg._async_presence import AsyncPeerWatch
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
        ForkedError,
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
    "ForkedError",
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

_HOMES = {
    name: home
    for home, names in {
        "._async_peer": ("AsyncPeer", "AsyncSubscription"),
        "._async_presence": ("AsyncPeerWatch",),
        "._batch": ("Batch",),
        "._codecs": ("Codec", "JsonCodec", "MsgpackCodec"),
        "._config": ("PeerConfig", "Record", "Stream", "Tuning"),
        "._discovery": ("Discovery",),
        "._event": ("Event", "Loss", "Position"),
        "._multicast": ("Feed", "Multicast"),
        "._peer": ("Peer", "__version__"),
        "._presence": ("PeerChange", "PeerInfo", "PeerWatch"),
        "._security": ("Security",),
        "._subscription": ("Subscription",),
        ".recovery.ledger": ("Ledger", "LedgerRow"),
    }.items()
    for name in names
}
"""The modules of public names that are no errors."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(_HOMES.get(name, "._errors"), __name__)
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
