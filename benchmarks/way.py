"""`Way`: how events are sent and received in a measurement, and the list of all of them."""

from __future__ import annotations

from dataclasses import dataclass

OURS = "meshmsg"
RIVAL = "rival"
LIMIT = "limit"

RAW = "raw"
RAW_LIST = "raw-list"
SYNC = "sync"
SYNC_BATCHES = "sync-batches"
DURABLE = "durable"
ASYNC = "async"
ASYNC_BATCHES = "async-batches"
MULTICAST = "multicast"
MULTICAST_BATCHES = "multicast-batches"
ZENOH = "zenoh"
NNG = "nng"
NATS = "nats"
DDS = "dds"
LCM = "lcm"
ICEORYX = "iceoryx2"
DATAGRAMS = "datagrams"
GSO = "gso"
TCP = "tcp"
C_TCP = "c-tcp"
C_GSO = "c-gso"


@dataclass(frozen=True, slots=True)
class Way:
    """Who sends and receives, and how."""

    name: str
    """In options and in JSON."""
    label: str
    """In tables and pictures."""
    family: str
    """`meshmsg`, `rival` or `limit`."""
    module: str
    """Of `benchmarks.ways`: where its roles are written."""
    count: int
    """64 B events for about a second, to one subscriber."""
    package: str = ""
    """What pip calls it."""
    batches: bool = False
    """Whether events go and come many at a time."""
    lossy: bool = False
    """Whether it may lose events and say nothing: how many is shown beside the figure."""
    networked: bool = True
    """Whether it could leave the machine."""
    size_bytes_max: int = 1 << 30
    """The largest payload that it takes."""

    @property
    def import_name(self) -> str:
        """The module of its roles."""
        return f"benchmarks.ways.{self.module}"


_ALL = (
    Way(RAW, "raw pyzmq", RIVAL, "raw", 800_000),
    Way(
        RAW_LIST,
        "raw pyzmq, 100 as one msgpack list",
        RIVAL,
        "raw_list",
        3_000_000,
        "msgpack",
        batches=True,
    ),
    Way(SYNC, "publish / for event in", OURS, "sync", 1_000_000),
    Way(SYNC_BATCHES, "publish_many / batches()", OURS, "sync", 3_000_000, batches=True),
    Way(
        DURABLE,
        "durable: publish / for event in",
        OURS,
        "durable",
        200_000,
        size_bytes_max=1024,
    ),
    Way(ASYNC, "await publish / async for", OURS, "asynchronous", 1_000_000),
    Way(
        ASYNC_BATCHES,
        "await publish_many / async batches()",
        OURS,
        "asynchronous",
        3_000_000,
        batches=True,
    ),
    Way(MULTICAST, "multicast: publish / for event in", OURS, "multicast", 800_000),
    Way(
        MULTICAST_BATCHES,
        "multicast: publish_many / batches()",
        OURS,
        "multicast",
        2_500_000,
        batches=True,
    ),
    Way(ZENOH, "Zenoh, peers, block", RIVAL, "zenoh_peer", 400_000, "eclipse-zenoh"),
    Way(NNG, "pynng PUB/SUB", RIVAL, "nng", 80_000, "pynng", lossy=True),
    Way(NATS, "nats-py and a nats-server", RIVAL, "nats_core", 120_000, "nats-py"),
    Way(DDS, "Cyclone DDS, reliable", RIVAL, "dds", 30_000, "cyclonedds"),
    Way(LCM, "LCM", RIVAL, "lcm_events", 120_000, "lcm", lossy=True),
    Way(
        ICEORYX,
        "iceoryx2, shared memory",
        RIVAL,
        "iceoryx",
        250_000,
        "iceoryx2",
        networked=False,
    ),
    Way(
        DATAGRAMS,
        "Python datagrams, one an event",
        LIMIT,
        "datagrams",
        150_000,
        lossy=True,
        size_bytes_max=65_507,
    ),
    Way(
        GSO,
        "Python datagrams, GSO and GRO",
        LIMIT,
        "gso",
        2_500_000,
        batches=True,
        lossy=True,
        size_bytes_max=1472,
    ),
    Way(
        TCP,
        "Python TCP, msgpack lists of 64 KiB",
        LIMIT,
        "tcp",
        4_000_000,
        "msgpack",
        batches=True,
    ),
    Way(C_TCP, "C, TCP batches of 64 KiB", LIMIT, "compiled", 16_000_000, batches=True),
    Way(
        C_GSO,
        "C, datagrams, GSO and GRO",
        LIMIT,
        "compiled",
        8_000_000,
        batches=True,
        lossy=True,
        size_bytes_max=1472,
    ),
)

WAYS = {way.name: way for way in _ALL}
OUR_WAYS = tuple(way.name for way in _ALL if way.family == OURS)
RIVAL_WAYS = tuple(way.name for way in _ALL if way.family == RIVAL)
LIMIT_WAYS = tuple(way.name for way in _ALL if way.family == LIMIT)
#: What each way is called in tables and pictures.
LABELS = {way.name: way.label for way in _ALL}
