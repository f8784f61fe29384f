"""Links, the connections to peers that were dialled; and which addresses belong to one.

Plain state: what is done with them stands in `outbound_peers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshmsg import _platform
from meshmsg._model.errors import PeerRefused, ProtocolError
from meshmsg._model.message_fields import STREAMS_MAX
from meshmsg.recovery.stream.time_shares import TimeBudget

if TYPE_CHECKING:
    from meshmsg._wire import control as c
    from meshmsg.transports.zmq.control import ControlClient


#: A page of a welcome that has not come by then is lost.
PAGE_S = 5.0


class Listing:
    """What a peer has, as its welcome tells page by page."""

    def __init__(self, link: Link, instance: int) -> None:
        #: The connection stands already.
        self.again = link.instance == instance and link.state == "up"
        self.streams: dict[str, c.StreamInfo] = {}
        self.recorded: dict[str, c.StreamInfo] = {}
        self.members: set[int] = set()  #: of our members, who has asked for some of them
        self.pages = 0  #: that have come
        self.due = _platform.monotonic() + PAGE_S  #: when the next one has to be here

    def is_next(self, welcome: c.Welcome, link: Link) -> bool:
        """Return True for the page that has to come, of the peer that began."""
        same = welcome.instance == link.instance and link.state == "up"
        return same and welcome.page == self.pages

    def add(
        self, known: dict[str, c.StreamInfo], infos: list[c.StreamInfo]
    ) -> dict[str, c.StreamInfo]:
        """Enter streams of a page; return those that are new to the listing and fit."""
        new = {info.name: info for info in infos if info.name not in known}
        if len(known) + len(new) > STREAMS_MAX:
            return {}
        known.update(new)
        return new


class Link:
    """One dialled connection to another peer."""

    def __init__(self, address: str, client: ControlClient, *, given: bool) -> None:
        self.address = address
        self.client = client
        self.given = given  #: by the user's `connect=`; others were learnt
        self.state = "dialling"
        self.reason = ""
        self.peer = ""
        self.instance = 0
        self.data_address = ""
        self.streams: dict[str, c.StreamInfo] = {}
        self.recorded: dict[str, c.StreamInfo] = {}  #: of other peers, kept by this one
        self.listing: Listing | None = None  #: whose last page has yet to come
        self.untaken: set[str] = set()  #: streams that there was no room for
        self.last_seen = _platform.monotonic()
        self.budget = TimeBudget()  #: of the I/O thread's time
        self.ping_due = 0.0
        self.reconnects = -1
        self.told = 0  #: streams of ours that the last hello named
        self.found = False  #: by discovery, which sees to it
        self.back: int | None = None  #: the number of who dialled us, and is dialled back
        self.called = ""  #: as it called itself then
        self.dialled_at = _platform.monotonic()
        self.noted = "dialling"  #: its state, as far as discovery has seen it
        self.door = 0  #: which of our mesh keys it is dialled with
        self.nonce = b""  #: what it was asked to prove its key with
        self.user = b""  #: who it is, once it has; empty where peers have no keys of their own
        self.data_key = b""  #: what its data sockets must have
        self.failures = 0  #: handshakes that failed since one did not
        self.taken = False  #: it was refused because another one has its name
        self.knock_due: float | None = None  #: when to try again where we were refused

    @property
    def host(self) -> str:
        """The host that was dialled; empty for ipc."""
        if self.address.startswith("ipc://"):
            return ""
        return self.address.removeprefix("tcp://").rpartition(":")[0].strip("[]")

    def send(self, parts: list[bytes]) -> bool:
        """Send now; only from the I/O thread."""
        return self.client.send(parts)


class LinkTable:
    """All links of a peer, by the addresses that were dialled; read from any thread."""

    def __init__(self) -> None:
        self.by_address: dict[str, Link] = {}

    def all(self) -> list[Link]:
        """All links."""
        return list(self.by_address.values())

    def up(self) -> list[Link]:
        """Links that are up."""
        return [link for link in self.all() if link.state == "up"]

    def is_one_awaited(self) -> bool:
        """Return True if a peer that the user named has yet to answer for the first time."""
        waiting = ("dialling", "greeting")
        return any(k.given and k.state in waiting and not k.peer for k in self.all())

    def refusal(self) -> PeerRefused | None:
        """The refusal, if every address that the user gave refused."""
        refused: Link | None = None
        for link in self.all():
            if link.given and link.state != "refused":
                return None
            if link.given:
                refused = refused or link
        return None if refused is None else PeerRefused(refused.address, refused.reason)

    def stats(self) -> list[dict[str, Any]]:
        """The state of each link."""
        return [
            {
                "address": link.address,
                "state": link.state,
                "peer": link.peer,
                "reason": link.reason,
                "streams": sorted(link.streams),
                "reconnects": max(0, link.reconnects),
            }
            for link in self.all()
        ]


def reachable(address: str, host: str) -> str:
    """Where to dial back: the host that the message came from, the port that it names.

    A message that came over ipc (no host) is from this machine, and may name what only this
    machine can reach; any other may not send us anywhere but back to where it came from.
    """
    if address.startswith("ipc://"):
        return "" if host else address
    port = address.rpartition(":")[2]
    if not address.startswith("tcp://") or not _is_port(port):
        return ""
    if not host:
        return address if address.startswith(("tcp://127.", "tcp://[::1]:")) else ""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def data_address(dialled: str, fanout: list[tuple[str, str]]) -> str:
    """The data address that belongs to the control address we dialled."""
    scheme = dialled.partition("://")[0]
    pairs = [pair for pair in fanout if pair[1].startswith(scheme + "://")]
    if not pairs:
        raise ProtocolError(f"no data address for {dialled}")
    if scheme == "ipc":
        return next((data for control, data in pairs if control == dialled), pairs[0][1])
    port = dialled.rpartition(":")[2]
    data = next((d for control, d in pairs if control.rpartition(":")[2] == port), pairs[0][1])
    if not _is_port(data.rpartition(":")[2]):
        raise ProtocolError(f"{data!r} is not a data address")
    return f"{dialled.rpartition(':')[0]}:{data.rpartition(':')[2]}"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536
