"""`Discovery`: how a peer finds the others.  See `_links.discovery_service` for what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshmsg._model.errors import ConfigError
from meshmsg._model.units import addresses, one_of, parse_time, set_field

DISCOVERY_WORDS = ("auto", "none", "zeroconf", "gossip")
PEERS_MAX = 10_000
#: The mesh of those who name none.
DEFAULT_MESH = "default"


@dataclass(frozen=True, slots=True)
class Discovery:
    """How a peer finds others: zeroconf on its network, seeds, and what its peers know.

    >>> Discovery(seeds="tcp://mesh.prod.svc:7000").seeds
    ('tcp://mesh.prod.svc:7000',)
    """

    zeroconf: bool | None = None
    """Announce and look for peers by mDNS on `interface`; `None`: where no `connect` is given."""
    gossip: bool = True
    """Tell peers of each other: knowing one is enough to find the rest."""
    seeds: Sequence[str] = ()
    """Addresses to look for peers at; a host name stands for all addresses that it resolves to."""
    advertise: Sequence[str] = ()
    """Addresses that others are told; where it listens, if not given."""
    peers_max: int = 128
    """Every peer connects to every other it finds, up to this many."""
    dial_timeout: float | str = "2s"
    """How long one address may take to answer before the next one is tried."""
    retry_max: float | str = "15s"
    """Pauses between attempts grow from half a second up to this."""
    resolve_every: float | str = "30s"
    """How often host names in `seeds` and `connect` are looked up again."""
    forget_after: float | str = "2m"
    """A peer that is away, and that nobody spoke of for this long, is not dialled again."""

    def __post_init__(self) -> None:
        if self.zeroconf is not None and not isinstance(self.zeroconf, bool):
            raise ConfigError("discovery.zeroconf", f"{self.zeroconf!r} is not True, False or None")
        if not isinstance(self.gossip, bool):
            raise ConfigError("discovery.gossip", f"{self.gossip!r} is neither True nor False")
        for name in ("seeds", "advertise"):
            given = addresses(f"discovery.{name}", getattr(self, name))
            for address in given:
                check_target(f"discovery.{name}", address)
                if address.startswith(("tcp://0.0.0.0:", "tcp://[::]:")):
                    problem = f"{address!r} is where one listens: name a host that others can reach"
                    raise ConfigError(f"discovery.{name}", problem)
            set_field(self, name, given)
        good = isinstance(self.peers_max, int) and not isinstance(self.peers_max, bool)
        if not good or not 1 <= self.peers_max <= PEERS_MAX:
            problem = f"{self.peers_max!r} is not a number of peers from 1 to {PEERS_MAX}"
            raise ConfigError("discovery.peers_max", problem)
        for name in ("dial_timeout", "retry_max", "resolve_every", "forget_after"):
            value = parse_time(f"discovery.{name}", getattr(self, name))
            if not value > 0:
                raise ConfigError(f"discovery.{name}", "must be more than 0")
            set_field(self, name, value)

    @property
    def is_on(self) -> bool:
        """Whether anything is looked for at all."""
        return self.zeroconf is not False or self.gossip or bool(self.seeds)

    @classmethod
    def of(cls, value: object) -> Discovery:
        """What a user may write for it: a `Discovery`, a word, or `None`; raises `ConfigError`."""
        if isinstance(value, Discovery):
            return value
        if value is None:
            return cls()
        if not isinstance(value, str):
            problem = f"{value!r} is none: write Discovery(...), or one of"
            raise ConfigError("discovery", f"{problem} {', '.join(map(repr, DISCOVERY_WORDS))}")
        return _BY_WORD[one_of("discovery", value, DISCOVERY_WORDS)]

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Discovery:
        """What `MESHMSG_DISCOVERY`, `MESHMSG_SEEDS` and `MESHMSG_ADVERTISE` say."""
        found = cls.of(environ.get("MESHMSG_DISCOVERY") or None)
        seeds = tuple((environ.get("MESHMSG_SEEDS") or "").split())
        told = tuple((environ.get("MESHMSG_ADVERTISE") or "").split())
        if not seeds and not told:
            return found
        return cls(found.zeroconf, found.gossip, seeds=seeds, advertise=told)


_BY_WORD = {
    "auto": Discovery(),
    "none": Discovery(zeroconf=False, gossip=False),
    "zeroconf": Discovery(zeroconf=True),
    "gossip": Discovery(zeroconf=False),
}


def named_mesh(mesh: str, environ: Mapping[str, str]) -> str:
    """Return the mesh that was named: by the caller, or in `MESHMSG_MESH`."""
    return mesh if mesh != DEFAULT_MESH else environ.get("MESHMSG_MESH") or DEFAULT_MESH


def check_target(field: str, address: str) -> None:
    """An address that can be dialled, not only listened at; raises `ConfigError`."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if address.startswith("tcp://") and (host == "*" or port in ("*", "0")):
        raise ConfigError(field, f"{address!r}: name the host and port to connect to")
