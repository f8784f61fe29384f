"""Other peers that have our name: told by those who refuse us for it, believed when we see one.

A name is one in a mesh, and whoever receives takes a stream from one peer only.  Who meets a second
one refuses it and says so (`taken`), again and again.  The one that is told looks for itself, over
a link of its own: a word alone stops nobody, and neither does a peer that has just died.  Of the
two the one that was started later gives way: its `publish` raises `NameInUse` until the other has
gone.  The earlier one goes on, and passes the word to the later one.

All of it runs on the I/O thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from meshmsg._links.discovery_service import Finder
from meshmsg._links.outbound_peers import Links
from meshmsg._runtime.control_sender import ControlSender
from meshmsg._wire import control as c

log = logging.getLogger("meshmsg.peer")

#: Addresses that are looked at, at once.
LOOKS_MAX = 4
#: How long a word counts; those who refuse us say it again every two seconds.
TOLD_S = 10.0


class Namesakes:
    """What a peer does about others of its name."""

    def __init__(
        self,
        control: ControlSender,
        links: Links,
        finder: Finder,
        addresses: Sequence[str],
        infos: Callable[[], list[c.StreamInfo]],
        set_rivals: Callable[[dict[str, str]], None],
    ) -> None:
        self._control = control
        self._links = links
        self._finder = finder
        self._addresses = addresses  # our own
        self._infos = infos
        self._set_rivals = set_rivals
        self._known: dict[str, str] = {}  # our streams that an earlier peer has, and where
        self._told_at = float("-inf")
        self._looks: dict[str, float] = {}  # addresses that were dialled to look, and when

    def on_taken(self, taken: c.Taken, host: str, now: float) -> None:
        """Somebody takes streams of our name from another peer: look at that one."""
        counters = self._control.counters
        counters["names_taken"] += 1
        self._told_at = now
        for address in self._finder.told_of(taken.addresses, host):
            if address not in self._links.table.by_address and address not in self._addresses:
                if len(self._looks) >= LOOKS_MAX:
                    counters["looks_dropped"] += 1
                    return
                self._looks[address] = now
                self._links.dial(address, given=False)

    def on_ping(self, now: float) -> None:
        """See who has our name, and open or shut our streams."""
        told = now - self._told_at < TOLD_S
        rivals = self._rivals() if told else {}
        known = self._known
        for stream, address in rivals.items():
            if known.get(stream) != address:
                text = "the name of %s is in use at %s: nobody takes it"
                log.error(text, stream, address, extra={"stream": stream})
        for stream in known.keys() - rivals.keys():
            log.info("the name of %s is ours again", stream, extra={"stream": stream})
        if rivals != known:
            self._known = rivals
            self._set_rivals(rivals)
        self._end_looks(now, told)

    def _end_looks(self, now: float, told: bool) -> None:
        """Hang up where nobody is, and everywhere once it is over."""
        for address, since in list(self._looks.items()):
            link = self._links.table.by_address.get(address)
            if link is None or (now - since > TOLD_S and (link.state != "up" or not told)):
                del self._looks[address]
                if link is not None and self._finder.contacts.at(address):
                    link.found = True  # discovery counts on it meanwhile
                elif link is not None:
                    self._links.drop(link)

    def _rivals(self) -> dict[str, str]:
        """Return our streams that an earlier peer has, and where; tell later ones of us."""
        own = {info.name: info.epoch for info in self._infos()}
        rivals: dict[str, str] = {}
        for link in self._links.table.up():
            shared = own.keys() & link.streams.keys()
            lost = {name for name in shared if own[name] >= link.streams[name].epoch}
            rivals |= dict.fromkeys(lost, link.address)
            if shared - lost:
                self._control.post(link, c.Taken(self._finder.own_addresses()))
        return rivals
