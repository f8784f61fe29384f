"""Captures of loopback traffic, and what tshark makes of them by docs/wireshark/meshmsg.lua.

python -m tests.support.captures        writes docs/wireshark/sample.pcap again
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from meshmsg._wire.packet import CONFIRM, NACK, REPAIR, PacketBeat, PacketRequest, PacketStatus
from meshmsg.recovery.multicast.seal import Sealer
from tests.support import processes
from tests.support.packets import cut_frame, parity_of
from tests.support.tools import ROOT, need

FOLDER = ROOT / "docs" / "wireshark"
SCRIPT = FOLDER / "meshmsg.lua"
SAMPLE = FOLDER / "sample.pcap"
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
GROUP = "239.255.7.7"
DEADLINE_S = 30.0

Row = dict[str, list[str]]


# The captured file -----------------------------------------------------------------------------

_PCAP_HEAD = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 101)  # raw IP


def pcap(
    datagrams: Sequence[tuple[float, tuple[str, int], tuple[str, int], bytes]],
    kept_bytes: int = 65_535,
) -> bytes:
    """A capture file of datagrams: time, source, destination, payload."""
    parts = [_PCAP_HEAD]
    for time_s, source, target, payload in datagrams:
        udp = struct.pack(">HHHH", source[1], target[1], 8 + len(payload), 0) + payload
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 0, 17, 0)
        data = ip + socket.inet_aton(source[0]) + socket.inet_aton(target[0]) + udp
        micros = round(time_s * 1e6)
        kept = data[:kept_bytes]
        parts.append(struct.pack("<IIII", micros // 10**6, micros % 10**6, len(kept), len(data)))
        parts.append(kept)
    return b"".join(parts)


def pcap_to(port: int, payloads: Sequence[bytes], kept_bytes: int = 65_535) -> bytes:
    """The same, for payloads that all go the same way."""
    way = (("127.0.0.1", 40_000), (GROUP, port))
    return pcap([(0.0, *way, payload) for payload in payloads], kept_bytes)


# Capturing -------------------------------------------------------------------------------------

_BEGINS = b"the capture begins"
_ENDS = b"the capture ends"


class Capture:
    """What goes over loopback while this is open, by dumpcap: ports, or a stream's packets.

    It is open when a datagram of its own has been captured, and complete when another has.
    """

    def __init__(self, *ports: int, stream: int | None = None, tcp: Sequence[int] = ()) -> None:
        self._wanted = [f"udp port {port}" for port in ports]
        self._wanted += [f"tcp port {port}" for port in tcp]
        if stream is not None:  # where the head of a packet has it
            high, low = struct.unpack(">II", stream.to_bytes(8, "little"))
            self._wanted.append(f"(udp[16:4] == {high} and udp[20:4] == {low})")
        self._parts: list[bytes] = []
        self._seen: set[bytes] = set()
        self._arrived = threading.Condition()

    @property
    def data(self) -> bytes:
        """The file that was captured."""
        return b"".join(self._parts)

    def __enter__(self) -> Self:
        (dumpcap,) = need("dumpcap")
        self._probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._probe.bind(("127.0.0.1", 0))
        self._probe.connect(self._probe.getsockname())
        wanted = [*self._wanted, f"udp port {self._probe.getsockname()[1]}"]
        self._process = processes.start(
            [dumpcap, "-q", "-i", LOOPBACK, "-B", "32", "-f", " or ".join(wanted), "-w", "-"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._wait_for(_BEGINS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._wait_for(_ENDS)
        finally:
            self._end()

    def _read(self) -> None:
        """Take what dumpcap gives, all the time: it loses packets when it has to wait."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        tail = b""
        while read := os.read(pipe, 1 << 20):
            self._parts.append(read)
            text = tail + read
            with self._arrived:
                self._seen |= {token for token in (_BEGINS, _ENDS) if token in text}
                self._arrived.notify()
            tail = text[-len(_BEGINS) :]

    def _wait_for(self, token: bytes) -> None:
        """Send a datagram of our own until it has been captured."""
        deadline = time.monotonic() + DEADLINE_S
        with self._arrived:
            while token not in self._seen:
                if not self._reader.is_alive():
                    raise CaptureFailed(self._said())
                if time.monotonic() > deadline:
                    raise CaptureFailed(f"nothing captured within {DEADLINE_S:.0f} s")
                with contextlib.suppress(BlockingIOError):
                    self._probe.send(token, socket.MSG_DONTWAIT)
                self._arrived.wait(0.05)

    def _said(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read().decode(errors="replace").strip()

    def _end(self) -> None:
        self._probe.close()
        self._process.terminate()
        self._reader.join(DEADLINE_S)
        self._process.communicate(timeout=DEADLINE_S)


class CaptureFailed(Exception):
    """dumpcap could not be started, or sees nothing: mostly for want of permission."""


# Dissecting ------------------------------------------------------------------------------------


@contextlib.contextmanager
def unprivileged() -> Iterator[tuple[Path, dict[str, str | int]]]:
    """A folder with docs/wireshark in it, and how to run tshark in it.

    Since 4.4 tshark runs no Lua for root, so it is run as nobody, who might not see the checkout.
    """
    with tempfile.TemporaryDirectory(prefix="meshmsg-") as name:
        folder = Path(name)
        shutil.copytree(FOLDER, folder / "docs" / "wireshark")
        how: dict[str, str | int] = {}
        if os.geteuid() == 0:
            with contextlib.suppress(KeyError):
                how = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid}
        folder.chmod(0o755)
        yield folder, how


#: A port that the system picked may be one that Wireshark knows for something else.
_BY_MAGIC = ("-o", "udp.try_heuristic_first:TRUE")


def tshark(*options: str, capture: bytes) -> str:
    """What tshark writes about a capture."""
    (command,) = need("tshark")
    with unprivileged() as (folder, how):
        script = folder / "docs" / "wireshark" / SCRIPT.name
        done = subprocess.run(
            [command, "-n", *_BY_MAGIC, "-X", f"lua_script:{script}", "-r", "-", *options],
            input=capture,
            capture_output=True,
            cwd=folder,
            env=clean_environment(folder),
            timeout=DEADLINE_S,
            check=False,
            **how,  # type: ignore[call-overload]
        )
    said = done.stderr.decode(errors="replace")
    assert done.returncode == 0, said
    assert "Lua" not in said, said
    text: str = done.stdout.decode()
    assert "Lua Error" not in text
    return text


def clean_environment(home: Path) -> dict[str, str]:
    """Without the preferences and plugins of whoever runs the tests."""
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "HOME": str(home), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


def fields() -> list[str]:
    """The fields that the dissector defines, its expert information included."""
    text = SCRIPT.read_text(encoding="utf-8")
    names = [f"meshmsg.{name}" for name in re.findall(r'^field\("([\w.]+)"', text, re.MULTILINE)]
    return names + re.findall(r'ProtoExpert\.new\(\s*"([\w.]+)"', text)


def dissect(capture: bytes, *options: str) -> list[Row]:
    """The fields of each datagram, each with its values; `info` is the Info column."""
    names = ["_ws.col.Protocol", "_ws.col.Info", "_ws.expert.message", *fields()]
    asked = [option for name in names for option in ("-e", name)]
    found = json.loads(tshark("-T", "json", *asked, *options, capture=capture))
    rows = [packet["_source"].get("layers", {}) for packet in found]
    for row in rows:
        row["protocol"], row["info"] = row.pop("_ws.col.Protocol"), row.pop("_ws.col.Info", [""])
    return rows


# The sample ------------------------------------------------------------------------------------

STREAM = stream_wire_id("default", "demo/quotes.**")
EPOCH = 1_700_000_000_000_000
TIME_NS = 1_700_000_000_123_456_789
PORT = 30_001
RECEIVER = 0x5EED


def sample_frames() -> list[bytes]:
    """Four frames: events 0 to 9, one large event that takes three packets, 11 to 20, 21."""
    quotes = [b"\xcb" + bytes(7) + bytes([n]) for n in range(10)]
    topics = ["quotes.eu", "quotes.us"] * 5
    return [
        encode_frame(STREAM, EPOCH, 0, topics, quotes, TIME_NS, raw=False),
        encode_frame(STREAM, EPOCH, 10, "quotes.book", [b"B" * 3000], TIME_NS),
        encode_frame(STREAM, EPOCH, 11, topics, quotes, TIME_NS, raw=False, keys={0: "A"}),
        encode_frame(STREAM, EPOCH, 21, "quotes.eu", [b"\x07"], TIME_NS, raw=False),
    ]


def sample_data(kind: int = 1) -> list[bytes]:
    """The packets of the sample's frames: numbers 0 to 5."""
    packets: list[bytes] = []
    first = 0
    for frame, events in zip(sample_frames(), (10, 1, 10, 1), strict=True):
        head = {"stream": STREAM, "epoch": EPOCH, "number": len(packets), "first": first}
        packets += cut_frame(frame, events=events, payload_bytes=1300, kind=kind, **head)
        first += events
    return packets


def sample_datagrams() -> list[tuple[float, tuple[str, int], tuple[str, int], bytes]]:
    """A short life of a stream: packet 2 is lost, asked for, and sent again."""
    sender, receiver = ("192.0.2.1", 40_001), ("192.0.2.2", 40_002)
    group, requests = (GROUP, PORT), (GROUP, PORT + 1)
    data = sample_data()
    parity = parity_of(data[4:], 1, stream=STREAM, epoch=EPOCH, first=4)
    sent = [data[0], data[1], data[3], data[4], data[5], parity[0].encode()]
    rows = [(0.0001 * n, sender, group, packet) for n, packet in enumerate(sent)]
    asked = [(2, 3)]
    nack = PacketRequest(NACK, STREAM, EPOCH, RECEIVER, asked).encode()
    rows.append((0.0012, receiver, requests, nack))
    rows.append((0.0013, sender, group, PacketRequest(CONFIRM, STREAM, EPOCH, 0, asked).encode()))
    rows.append((0.0014, sender, group, sample_data(REPAIR)[2]))
    status = PacketStatus(STREAM, EPOCH, 6, RECEIVER, 4 << 20).encode()
    rows.append((0.0016, receiver, sender, status))
    beat = PacketBeat(STREAM, EPOCH, 6, 0, 0, 22, 1, 0)
    rows.append((0.0105, sender, group, beat.encode()))
    rows.append((1.0107, sender, group, beat._replace(flags=1).encode()))
    # The same stream with keys: nobody without them sees more than this.
    rows.append((2.0, sender, group, sample_seal(data[0], 0x5EA1)))
    rows.append((2.001, receiver, requests, sample_seal(nack, 0x5EA2)))
    return rows


def sample_seal(packet: bytes, sender: int, key: bytes = bytes(range(32))) -> bytes:
    """A packet as the first that a sender seals, with the key of generation 472,222."""
    sealer = Sealer(STREAM, sender)
    sealer.use(472_222, key)
    return bytes(sealer.seal(packet, len(packet)))


if __name__ == "__main__":
    SAMPLE.write_bytes(pcap(sample_datagrams()))
