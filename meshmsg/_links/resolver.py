"""The scout of a peer: looks for others where that takes time, on a thread of its own.

It starts zeroconf, looks up names, and finds out why an address cannot be reached; what it finds is
handed to the I/O thread.  A peer that needs none of this has no scout.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from meshmsg import _platform
from meshmsg._model.config import PeerConfig
from meshmsg._model.discovery_config import Discovery
from meshmsg._model.errors import MeshError
from meshmsg._runtime.guard import Guard
from meshmsg._wire import control as c
from meshmsg.transports.discovery.addresses import WILDCARDS, resolve, split_target
from meshmsg.transports.discovery.mdns import Beacon, Service
from meshmsg.transports.sockets import new_beacon, why_unreachable
from meshmsg.transports.udp.interfaces import find_interface, local_addresses

log = logging.getLogger("meshmsg.discovery")

PROBE_S = 1.0
#: The first pause after a name could not be looked up; each further one is twice as long.
RESOLVE_RETRY_S = 1.0
#: When nobody was heard of by zeroconf for this long, the log says what may be wrong.
HINT_S = 5.0
JOBS_MAX = 1000
CLOSE_S = 3.0
NEVER = float("inf")


def interfaces_of(interface: str) -> tuple[str, ...]:
    """The addresses of an interface, for zeroconf; raises `ConfigError`."""
    if interface in WILDCARDS:
        return tuple(local_addresses())
    if ":" in interface:
        return (interface,)
    found = find_interface("interface", interface)
    return (found.address or interface,)


def others_text(count: int, option: str) -> str:
    """Return what to do about peers that run in other folders."""
    peers = "1 peer of another folder is" if count == 1 else f"{count} peers of other folders are"
    return f"{peers} here: give both the same {option} to meet"


class Name:
    """A host name among the seeds."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.due = 0.0
        self.tries = 0
        self.addresses: list[str] = []
        self.reason = ""


class Scout:
    """One thread; `found` and `gone` are called on it."""

    def __init__(
        self,
        config: PeerConfig,
        instance: int,
        addresses: tuple[str, ...],
        names: list[Name],
        *,
        scope: str,
        zeroconf: bool,
        on_service: Callable[[bool, Service], None],
        on_name: Callable[[Name], None],
        on_reason: Callable[[str, str], None],
        counters: Counter[str],
    ) -> None:
        self._config = config
        self._found = config.discovery or Discovery()
        self._instance = instance
        self._addresses = addresses
        self._scope = scope
        self._on_service = on_service
        self._on_name = on_name
        self._on_reason = on_reason
        self._jobs: deque[str] = deque()
        self._wanted = _platform.new_condition()  # something is asked, or it is over
        self._beacon: Beacon | None = None
        self._stopping = False
        self.names = names
        self.zeroconf: dict[str, Any] = {"state": "starting" if zeroconf else "off", "reason": ""}
        self._hint_at = NEVER
        self.guard = Guard(f"the search of {config.name} for peers", counters)
        self._thread = _platform.new_thread(self._run, f"meshmsg-scout-{config.name}")

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there is somebody to ask."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Say good-bye by zeroconf, and end."""
        with self._wanted:
            self._stopping = True
            self._wanted.notify()
        if self.is_running and _platform.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def ask_why(self, address: str) -> None:
        """Find out why nobody answers there: for people, the attempt itself is made anyway."""
        with self._wanted:
            if len(self._jobs) < JOBS_MAX:
                self._jobs.append(address)
                self._wanted.notify()

    def known(self) -> list[Service]:
        """What zeroconf has heard of."""
        beacon = self._beacon
        return [] if beacon is None else beacon.known()

    def is_ours(self, service: Service) -> bool:
        """Return True for peers that were told of us: of our mesh and, where it has no name, of our
        user and folder."""
        records = service.records
        return records.get("mesh") == self._config.mesh and records.get("scope", "") == self._scope

    def elsewhere(self) -> list[Service]:
        """Return the peers of our mesh that run for other users or in other folders."""
        mesh = self._config.mesh
        known = self.known() if self._scope else []
        return [s for s in known if s.records.get("mesh") == mesh and not self.is_ours(s)]

    # --- the thread ---

    def _run(self) -> None:
        self.guard.drive(self._turn)  # a defect of ours, or of the system's resolver
        if self._beacon is not None:
            try:
                self._beacon.close()
            except Exception:
                log.debug("zeroconf did not end well", exc_info=True)

    def _turn(self) -> bool:
        """Look up names that are due, and find out what was asked; `False` when it is over."""
        if self.zeroconf["state"] == "starting":
            self._start_beacon()
            self._hint_at = _platform.monotonic() + HINT_S
        now = _platform.monotonic()
        for name in self.names:
            if name.due <= now and not self._stopping:
                self._look_up(name)
        if now >= self._hint_at:
            self._hint_at = NEVER
            self._hint()
        due = min([name.due for name in self.names] + [self._hint_at])
        if not self._stopping:
            self._work(due - _platform.monotonic())
        return not self._stopping

    def _work(self, timeout_s: float) -> None:
        with self._wanted:
            if not (self._jobs or self._stopping):
                self._wanted.wait(None if timeout_s == NEVER else max(0.01, timeout_s))
            if self._stopping or not self._jobs:
                return
            job = self._jobs.popleft()
        self._on_reason(job, why_unreachable(job, PROBE_S))

    def _start_beacon(self) -> None:
        if self._stopping:
            return
        interface = self._config.interface
        try:
            hosts = interfaces_of(interface)
            self.zeroconf["interfaces"] = list(hosts)
            self._beacon = new_beacon(hosts, self._on_service)
            self._announce(hosts)
        except (MeshError, OSError, RuntimeError, TimeoutError, ImportError) as error:
            self.zeroconf |= {"state": "failed", "reason": str(error) or type(error).__name__}
            log.warning(
                "zeroconf cannot be used on %s: %s. Peers are found by connect= and seeds= only",
                interface,
                self.zeroconf["reason"],
            )
            return
        self.zeroconf["state"] = "on"

    def _announce(self, hosts: tuple[str, ...]) -> None:
        assert self._beacon is not None
        targets = [target for a in self._addresses if (target := split_target(a)) is not None]
        ours = [target for target in targets if target.host in hosts or self._found.advertise]
        if not ours:
            reason = f"it listens at {', '.join(self._addresses)}, not on {', '.join(hosts)}"
            self.zeroconf["reason"] = f"not announced: {reason}"
            log.info("not announced by zeroconf: %s", reason)
            return
        port = ours[0].port
        safe = "".join(x if x.isascii() and (x.isalnum() or x in "-_") else "-" for x in self.name)
        records = {
            "mesh": self._config.mesh,
            "peer": self.name,
            "id": f"{self._instance:016x}",
            "v": str(c.PROTOCOL_VERSION),
            **({"scope": self._scope} if self._scope else {}),
        }
        at = tuple(dict.fromkeys(target.host for target in ours if target.port == port))
        self._beacon.announce(f"{safe[:46]}-{self._instance:016x}", at, port, records)

    @property
    def name(self) -> str:
        """The peer's name."""
        return self._config.name

    def _look_up(self, name: Name) -> None:
        try:
            name.addresses = resolve(name.host)
            name.reason, name.tries = "", 0
            pause = float(self._found.resolve_every)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != name.reason:
                log.warning("the name %s cannot be looked up: %s", name.host, reason)
            name.reason = reason
            name.tries += 1
            pause = RESOLVE_RETRY_S * 2 ** min(name.tries - 1, 16)
            pause = min(pause, float(self._found.resolve_every))
        name.due = _platform.monotonic() + pause
        self._on_name(name)

    def _hint(self) -> None:
        """Said once: most who look for a reason look into the log first."""
        if self.zeroconf["state"] != "on":
            return
        own = f"{self._instance:016x}"
        mesh = self._config.mesh
        heard = {s.records.get("id") for s in self.known() if self.is_ours(s)}
        others = len(self.elsewhere())
        if not heard and not self.zeroconf["reason"]:  # we were announced, and did not hear it
            self.zeroconf["reason"] = "our own announcement was not heard: multicast is blocked"
            log.warning(
                "zeroconf on %s: %s. Name one peer with connect= or seeds=, and the others will be "
                "found; `meshmsg doctor` tells more",
                self._config.interface,
                self.zeroconf["reason"],
            )
        elif heard <= {own}:
            log.info(
                "zeroconf has heard of no other peer of mesh %r%s on %s%s. If there should be one: "
                "run `meshmsg doctor`, or name one peer with connect= or seeds=",
                mesh,
                " and this folder" if self._scope else "",
                self._config.interface,
                f" ({others_text(others, 'mesh=')})" if others else "",
            )
