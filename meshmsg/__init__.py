"""meshmsg: brokerless direct messaging.  Peers talk to each other, and no loss is silent.

General layout, from the top; imports run down only (`lint-imports` holds them to it):

    cli                                     the command, made of public names
    spark_sink                              the Spark source and the sink daemon
    otel                                    traces and figures through OpenTelemetry
    webhooks, statsd, nanomsg, moldudp      bridges to other systems
    monitor                                 a peer's figures over HTTP, for Prometheus and probes
    _bridge                                 what bridges and the monitor share
    logs, keys, doctor                      what programs do without a peer: logs, keys, checks
    _overview                               the whole mesh, from the figures of its peers
    testing                                 what users' own tests need, a simulated mesh included
    _peer                                   what users hold; its node joins the rooms below
    _publish _receive _groups _links _replay    what a peer does: sockets, threads, locks
    _access, _runtime                       who may do what; what threads share
    transports                              how bytes travel: `zmq`, `udp`, `discovery`, `memory`
    recovery                                every decision, without I/O; `log` alone touches disk
    _wire, _model                           bytes; nouns
    _platform, _native                      the clock, threads and locks; the compiled core's door

Names are loaded with their first use: most programs need a few of them, and a command that is
interrupted while it starts ends at once.

>>> import meshmsg
>>> with meshmsg.Peer("hello", bind="tcp://127.0.0.1:*") as peer:
...     position = peer.publish("greetings.world", {"text": "hi"})
"""

import importlib

TYPE_CHECKING = False  # `typing` takes longer to load than all else that is needed here

if TYPE_CHECKING:
    from typing import Any

    from meshmsg._model.batch import Batch, Event
    from meshmsg._model.codecs import Codec, JsonCodec, MsgpackCodec
    from meshmsg._model.config import PeerConfig, Record, Stream, Tuning
    from meshmsg._model.discovery_config import Discovery
    from meshmsg._model.errors import (
        BindError,
        ClosedError,
        ConfigError,
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
    from meshmsg._model.event import EventsLost, Loss, Position
    from meshmsg._model.monitor_config import Monitor
    from meshmsg._model.multicast_config import Feed, Multicast
    from meshmsg._model.security_config import Security
    from meshmsg._model.units import parse_time
    from meshmsg._native import COMPILED
    from meshmsg._peer.async_peer import AsyncPeer, AsyncSubscription
    from meshmsg._peer.async_presence import AsyncPeerWatch
    from meshmsg._peer.peer import Peer, __version__
    from meshmsg._peer.presence import PeerChange, PeerInfo, PeerWatch
    from meshmsg._receive.subscription import StartFrom, Subscription
    from meshmsg._runtime.json_lines import JsonLogFormatter
    from meshmsg.recovery.stream.ledger import Ledger, LedgerRow

__all__ = [
    "AsyncPeer",
    "AsyncPeerWatch",
    "AsyncSubscription",
    "Batch",
    "BindError",
    "COMPILED",
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
    "JsonLogFormatter",
    "Ledger",
    "LedgerRow",
    "LogError",
    "LogFull",
    "LogLocked",
    "Loss",
    "MeshError",
    "Monitor",
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
    "StartFrom",
    "Stream",
    "Subscription",
    "TopicError",
    "Tuning",
    "WaitTimeout",
    "__version__",
    "parse_time",
]

_HOMES = {
    name: home
    for home, names in {
        "._peer.async_peer": ("AsyncPeer", "AsyncSubscription"),
        "._peer.async_presence": ("AsyncPeerWatch",),
        "._model.batch": ("Batch", "Event"),
        "._model.codecs": ("Codec", "JsonCodec", "MsgpackCodec"),
        "._model.config": ("PeerConfig", "Record", "Stream", "Tuning"),
        "._model.discovery_config": ("Discovery",),
        "._model.event": ("EventsLost", "Loss", "Position"),
        "._model.monitor_config": ("Monitor",),
        "._model.multicast_config": ("Feed", "Multicast"),
        "._peer.peer": ("Peer", "__version__"),
        "._peer.presence": ("PeerChange", "PeerInfo", "PeerWatch"),
        "._model.security_config": ("Security",),
        "._model.units": ("parse_time",),
        "._native": ("COMPILED",),
        "._receive.subscription": ("StartFrom", "Subscription"),
        "._runtime.json_lines": ("JsonLogFormatter",),
        ".recovery.stream.ledger": ("Ledger", "LedgerRow"),
    }.items()
    for name in names
}
"""The modules of public names; all others are errors."""


def __getattr__(name: str) -> "Any":
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(_HOMES.get(name, "._model.errors"), __name__)
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
