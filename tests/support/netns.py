"""Network namespaces joined by bridges, for tests that need a real kernel and real loss.

    with Network(["sender", "one", "two"]) as net:
        net["one"].lose(5)                              # per cent of all UDP, both ways
        RemotePeer("sub", within=net["one"].command, interface=net["one"].address)

Everything, the bridges included, lives in namespaces of its own: nothing is made in the machine's
own network, and what is left of a killed test goes with its namespaces, at the next start.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import pytest

PREFIX = "meshmsg-test"
#: Where everybody is on line 0; line 1 is 10.77.1.0/24, and so on.
NET4 = "10.77.{line}.{host}"
NET6 = "fd77:{line}::{host}"
_numbers = itertools.count()


def _call(command: Sequence[str], text: str | None = None) -> str:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=100, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@functools.cache
def why_not() -> str:
    """Why namespaces cannot be made here; empty if they can."""
    missing = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} here"
    name = f"{PREFIX}-{os.getpid()}-probe"
    try:
        _call(["ip", "netns", "add", name])
    except RuntimeError as error:
        return str(error)
    try:
        _call(["ip", "netns", "exec", name, "nft", "add", "table", "inet", "probe"])
    except RuntimeError as error:
        return str(error)
    finally:
        _call(["ip", "netns", "del", name])
    return ""


def needs_namespaces() -> pytest.MarkDecorator:
    """Mark tests that cannot do without; in CI they must be able to."""
    reason = why_not()
    if reason and os.environ.get("CI"):
        raise RuntimeError(f"network namespaces cannot be made: {reason}")
    return pytest.mark.skipif(bool(reason), reason=f"no network namespaces: {reason}")


def sweep() -> None:
    """Remove what tests that were killed have left behind."""
    for line in _call(["ip", "netns", "list"]).splitlines():
        name = line.split()[0]
        pid = name.removeprefix(PREFIX + "-").partition("-")[0]
        if name.startswith(PREFIX) and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(RuntimeError):  # another test sweeps, too
                _call(["ip", "netns", "del", name])


class Host:
    """One namespace: a machine with a network card for each line, plugged into a switch."""

    def __init__(self, space: str, hub: str, number: int, lines: int) -> None:
        self.space = space
        self.addresses = [NET4.format(line=line, host=number) for line in range(lines)]
        self.addresses6 = [NET6.format(line=line, host=number) for line in range(lines)]
        self.cards = [f"eth{line}" for line in range(lines)]
        self.ports = [f"p{line}x{number}" for line in range(lines)]  #: at the switch
        self._hub = hub

    @property
    def command(self) -> list[str]:
        """What to put before a command to run it there."""
        return ["ip", "netns", "exec", self.space]

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def address6(self) -> str:
        return self.addresses6[0]

    def run(self, *command: str) -> str:
        return _call([*self.command, *command])

    def lose(self, percent: int, *, line: int | None = None) -> None:
        """Lose this part of all UDP packets by chance, in and out; TCP stays whole.

        Takes the place of what was said before.
        """
        chance = f"meta l4proto udp numgen random mod 100 < {percent} counter"
        self._drop("loss", chance if percent else "", line)

    def refuse_tcp(self) -> None:
        """A one-way network: no connection can be made."""
        self._drop("tcp", "meta l4proto tcp", None)

    def refuse_multicast(self) -> None:
        """A network, or a container, that does not pass multicast on."""
        self._drop("multicast", "ip daddr 224.0.0.0/4", None)

    def cut(self, *, line: int | None = None) -> None:
        """Pull the cable."""
        self._drop("cable", "counter", line)

    def join(self, *, line: int | None = None) -> None:
        """Put it back."""
        self._drop("cable", "", line)

    def _drop(self, name: str, rule: str, line: int | None) -> None:
        """What comes in is dropped here; what goes out at the switch, which nobody here notices."""
        for each in range(len(self.cards)) if line is None else [line]:
            for space, device in ((self.space, self.cards[each]), (self._hub, self.ports[each])):
                table = f"netdev {name}-{device}"
                script = [f"add table {table}", f"delete table {table}"]
                if rule:
                    hook = f"type filter hook ingress device {device} priority 0"
                    script.append(f"add table {table}")
                    script.append(f"add chain {table} drops {{ {hook}; policy accept; }}")
                    script.append(f"add rule {table} drops {rule} drop")
                _call(["ip", "netns", "exec", space, "nft", "-f", "-"], "\n".join(script) + "\n")


class Network:
    """Hosts on one or more lines, each line a switch of its own."""

    def __init__(self, hosts: Sequence[str], *, lines: int = 1) -> None:
        self._base = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        self._lines = lines
        self._names = list(hosts)
        self._hub = f"{self._base}-hub"
        self._made: list[str] = []
        self._hosts: dict[str, Host] = {}

    def __enter__(self) -> Network:
        sweep()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def heal(self) -> None:
        """No loss anywhere, all cables in."""
        for space in self._made:
            _call(["ip", "netns", "exec", space, "nft", "flush", "ruleset"])

    def _build(self) -> None:
        self._add_space(self._hub)
        for line in range(self._lines):
            self._ip(self._hub, f"link add sw{line} type bridge mcast_snooping 0 forward_delay 0")
            self._ip(self._hub, f"link set sw{line} up")
        for number, name in enumerate(self._names, start=1):
            host = Host(f"{self._base}-{name}", self._hub, number, self._lines)
            self._add_space(host.space)
            self._hosts[name] = host
            for line in range(self._lines):
                self._plug_in(host, line)

    def _plug_in(self, host: Host, line: int) -> None:
        card, port = host.cards[line], host.ports[line]
        self._ip(self._hub, f"link add {port} type veth peer name {card} netns {host.space}")
        self._ip(self._hub, f"link set {port} master sw{line} up")
        self._ip(host.space, f"link set {card} up")
        self._ip(host.space, f"addr add {host.addresses[line]}/24 dev {card}")
        self._ip(host.space, f"addr add {host.addresses6[line]}/64 dev {card} nodad")
        # A burst of packets crosses as single ones, as it would on a wire: each is lost alone.
        self._ip(self._hub, f"link set {port} gso_max_segs 1")
        self._ip(host.space, f"link set {card} gso_max_segs 1")

    def _add_space(self, space: str) -> None:
        _call(["ip", "netns", "add", space])
        self._made.append(space)
        self._ip(space, "link set lo up")

    def _ip(self, space: str, command: str) -> None:
        _call(["ip", "-n", space, *command.split()])

    def _remove(self) -> None:
        while self._made:
            with contextlib.suppress(RuntimeError):
                _call(["ip", "netns", "del", self._made.pop()])
