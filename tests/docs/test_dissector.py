"""The dissector for Wireshark, run by the real tshark on traffic of the real loopback interface."""

from __future__ import annotations

import os
import random
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import pytest

from meshmsg import Multicast, Peer, Stream
from meshmsg._model.errors import ProtocolError
from meshmsg._wire.control import stream_wire_id
from meshmsg._wire.frame import encode_frame
from meshmsg._wire.packet import (
    ANSWERS,
    CONFIRM,
    DATA,
    DATA_HEAD,
    ENDS,
    HEARTBEAT,
    LEAVES,
    NACK,
    NUMBER_MAX,
    PACKET_MAGIC,
    PARITY,
    RANGES_MAX,
    REPAIR,
    STATUS,
    DataHead,
    PacketBeat,
    PacketParity,
    PacketRequest,
    PacketStatus,
    check_data_head,
    decode_packet,
    packet_kind,
)
from meshmsg.testing import lose_packets
from tests.long import test_fuzz_packets as fuzz
from tests.support import captures
from tests.support.captures import (
    EPOCH,
    GROUP,
    RECEIVER,
    STREAM,
    Capture,
    CaptureFailed,
    Row,
    dissect,
    pcap,
    pcap_to,
    tshark,
)
from tests.support.packets import cut_frame, parity_of, some_packet
from tests.support.tools import need

PORT = captures.PORT
TIME_NS = captures.TIME_NS
STREAM_TEXT = f"0x{STREAM:016x}"
UDP_SEGMENT = 103


@pytest.fixture(autouse=True, scope="module")
def _tools() -> None:
    need("tshark", "dumpcap")


def values(row: Row, *names: str) -> list[str]:
    """The values of fields that are there once, as tshark writes them."""
    found = [row[f"meshmsg.{name}"] for name in names]
    assert all(len(one) == 1 for one in found), found
    return [one[0] for one in found]


def is_refused(row: Row) -> bool:
    return "meshmsg.malformed" in row or row.get("meshmsg.check.status") == ["0"]


def data_packets(number: int = 17, kind: int = DATA, **how: object) -> list[bytes]:
    """A frame of 4 small events in one packet, or what `how` says."""
    count = int(str(how.get("count", 4)))
    size = int(str(how.get("size", 5)))
    topics = how.get("topics", ["quotes.eu", "quotes.us"] * 2)
    frame = encode_frame(STREAM, EPOCH, 100, topics, [b"x" * size] * count, TIME_NS)  # type: ignore[arg-type]
    return cut_frame(
        frame,
        stream=STREAM,
        epoch=EPOCH,
        number=number,
        first=100,
        events=count,
        payload_bytes=1400,
        kind=kind,
    )


SMALL = data_packets()
LARGE = data_packets(18, topics="quotes.book", count=1, size=3000)
AGAIN = data_packets(18, REPAIR, topics="quotes.book", count=1, size=3000)
BEAT = PacketBeat(STREAM, EPOCH, 121, 7, 41, 5001, 3, ENDS | ANSWERS)
NACKED = PacketRequest(NACK, STREAM, EPOCH, RECEIVER, [(17, 20), (40, 42)])
CONFIRMED = PacketRequest(CONFIRM, STREAM, EPOCH, 0, [(17, 18)])
REPORT = PacketStatus(STREAM, EPOCH, 120, RECEIVER, 1 << 20)
PROTECTION = parity_of(SMALL + LARGE, 2, stream=STREAM, epoch=EPOCH, first=17)[1]


# Real traffic ----------------------------------------------------------------------------------


class Line:
    """A group on loopback: a socket that sends to it, sockets that have joined it."""

    def __init__(self) -> None:
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        loopback = socket.inet_aton("127.0.0.1")
        self.sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, loopback)
        self.sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
        self.sender.bind(("127.0.0.1", 0))
        self.data = self._joined(0)
        self.port: int = self.data.getsockname()[1]
        self.requests = self._joined(0)
        self.request_port: int = self.requests.getsockname()[1]

    def _joined(self, port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.bind((GROUP, port))
        member = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1")
        made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        made.settimeout(10)
        return made

    def close(self) -> None:
        for one in (self.sender, self.data, self.requests):
            one.close()

    def send(self, data: bytes) -> bytes:
        """To the group; returns what came out of it."""
        self.sender.sendto(data, (GROUP, self.port))
        return self.data.recv(65_536)

    def ask(self, data: bytes) -> bytes:
        """To the group's request port."""
        self.sender.sendto(data, (GROUP, self.request_port))
        return self.requests.recv(65_536)

    def report(self, data: bytes) -> bytes:
        """To the sender's own address."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
            receiver.sendto(data, self.sender.getsockname())
        return self.sender.recv(65_536)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def captured(line: Line, sends: Sequence[tuple[Callable[[bytes], bytes], bytes]]) -> list[Row]:
    """Send over the real interface and dissect what was seen there.

    Who may not capture dissects what the receiving sockets got.
    """
    ports = (line.port, line.request_port, line.sender.getsockname()[1])
    got = []
    try:
        with Capture(*ports) as capture:
            got = [send(data) for send, data in sends]
        data = capture.data
    except CaptureFailed:
        got = [send(data) for send, data in sends]
        data = pcap_to(line.port, got)
    assert got == [data for _, data in sends]
    return dissect(data, "-Y", "meshmsg")


def test_real_traffic_of_every_kind(line: Line) -> None:
    rows = captured(
        line,
        [
            *[(line.send, data) for data in (*SMALL, *LARGE)],
            (line.send, PROTECTION.encode()),
            (line.ask, NACKED.encode()),
            (line.send, CONFIRMED.encode()),
            (line.send, AGAIN[1]),
            (line.report, REPORT.encode()),
            (line.send, BEAT.encode()),
        ],
    )
    assert [row["info"] for row in rows] == [
        ["Data #17 events 100-103 (quotes.eu and 1 other)"],
        ["Data #18 1/3 event 100 (quotes.book)"],
        ["Data #19 2/3 event 100"],
        ["Data #20 3/3 event 100"],
        ["Parity 2/2 of packets 17-20"],
        ["NACK 2 ranges, 5 packets: 17-19, 40-41"],
        ["Confirm 1 range, 1 packet: 17"],
        ["Repair #19 2/3 event 100"],
        ["Status: has all before #120, room for 1048576 bytes, receiver 0x0000000000005eed"],
        ["Heartbeat packets 7-120 events 41-5000, 3 receivers, ends, answers"],
    ]
    kinds = [row["meshmsg.kind"] for row in rows]
    assert kinds == [[str(kind)] for kind in (1, 1, 1, 1, 7, 4, 5, 2, 6, 3)]
    for row in rows:
        assert row["protocol"] == ["MESHMSG"]
        assert values(row, "magic", "stream", "epoch") == ["MMP1", STREAM_TEXT, str(EPOCH)]
        assert "_ws.expert.message" not in row


def test_real_traffic_of_peers() -> None:
    """A publisher and a subscriber that loses packets: everything either sends is understood."""
    transport = Multicast(f"{GROUP}:{free_port()}", parity="4+1")
    streams = [Stream("quotes.**", transport=transport)]
    mesh = f"dissected-{random.SystemRandom().getrandbits(40)}"  # others may be about
    wire_id = stream_wire_id(mesh, "pricing/quotes.**")
    try:
        with (
            Capture(stream=wire_id) as capture,
            Peer("pricing", streams=streams, mesh=mesh) as pricing,
            Peer("reader", connect=pricing.address, mesh=mesh) as reader,
            reader.subscribe("quotes.**") as events,
        ):
            pricing.wait_for_subscribers("quotes.eu", timeout=30)
            with lose_packets(reader, 0.2, seed=3) as path:
                for _ in range(30):
                    pricing.publish_many("quotes.eu", [b"x" * 700] * 20)
                pricing.publish("quotes.book", b"y" * 50_000)
                got = 0
                while got < 601:
                    batch = events.get_many(1000, timeout=30)
                    assert batch
                    got += len(batch)
            assert path.dropped
    except CaptureFailed as error:
        if os.geteuid() == 0:
            raise
        pytest.skip(f"capturing takes root: {error}")
    shown = dissect(capture.data, "-Y", f"meshmsg.stream == {wire_id:#x}")
    kinds = {kind for row in shown for kind in row["meshmsg.kind"]}
    assert {str(kind) for kind in (DATA, REPAIR, NACK, PARITY, STATUS, HEARTBEAT)} <= kinds
    assert not any("_ws.expert.message" in row for row in shown)
    numbers = [
        int(number)
        for row in shown
        if row["meshmsg.kind"][0] == str(DATA)
        for number in row["meshmsg.number"]
    ]
    assert numbers == list(range(len(numbers)))
    topics = {topic for row in shown for topic in row.get("meshmsg.frame.topic", [])}
    assert topics == {"quotes.eu", "quotes.book"}
    assert any("1" in row.get("meshmsg.beat.ends", []) for row in shown)


def free_port() -> int:
    """Free now, and the one after it mostly, too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port - 1


@pytest.mark.skipif(sys.platform != "linux", reason="segmentation offload as Linux has it")
def test_many_packets_of_one_offloaded_send(line: Line) -> None:
    """A capture at the sender shows them before they are cut: one datagram of many packets."""
    packets = data_packets(0, topics="a", count=1, size=20_000)
    segment = len(packets[0])
    assert {len(packet) for packet in packets[:-1]} == {segment}

    def send(data: bytes) -> bytes:
        how = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", segment))]
        line.sender.sendmsg([data], how, 0, (GROUP, line.port))
        return b"".join(line.data.recv(65_536) for _ in packets)

    rows = captured(line, [(send, b"".join(packets))])
    numbers = [number for row in rows for number in row["meshmsg.number"]]
    assert numbers == [str(number) for number in range(len(packets))]
    assert not any("meshmsg.malformed" in row for row in rows)


# Fields ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    payloads = [*SMALL, *LARGE, AGAIN[1], BEAT.encode(), NACKED.encode(), CONFIRMED.encode()]
    payloads += [REPORT.encode(), PROTECTION.encode(), b"".join(SMALL * 5)]
    return dissect(pcap_to(PORT, payloads))


def test_data_shows_its_head(rows: list[Row]) -> None:
    names = ("kind", "number", "place", "packets", "first_event", "events")
    assert values(rows[0], *names) == ["1", "17", "0", "1", "100", "4"]
    assert values(rows[2], *names) == ["1", "19", "1", "3", "100", "1"]
    assert values(rows[4], *names) == ["2", "19", "1", "3", "100", "1"]
    frame_bytes = sum(len(packet) - DATA_HEAD.size for packet in LARGE)
    for row in rows[1:5]:
        assert values(row, "frame_bytes") == [str(frame_bytes)]
    assert values(rows[2], "payload") == [LARGE[1][DATA_HEAD.size :].hex()]


def test_frame_header_is_shown_where_it_is(rows: list[Row]) -> None:
    frame = SMALL[0][DATA_HEAD.size :]
    names = ("magic", "stream", "length", "count", "epoch", "first", "topic_count", "table_bytes")
    assert values(rows[0], *(f"frame.{name}" for name in names)) == [
        *("MMF1", STREAM_TEXT, str(len(frame)), "4", str(EPOCH), "100", "2", "19"),
    ]
    assert rows[0]["meshmsg.frame.topic"] == ["quotes.eu", "quotes.us"]
    flags = ("topic_index", "times", "encodings", "raw", "keys", "headers")
    flags = tuple(f"frame.flags.{name}" for name in flags)
    assert values(rows[0], "frame.flags", *flags) == ["0x0009", "1", "0", "0", "1", "0", "0"]
    assert "22:13:20.123456789" in values(rows[0], "frame.time")[0]
    assert values(rows[0], "frame.check.status") == ["1"]
    assert values(rows[1], "frame.topic", "frame.check.status") == ["quotes.book", "2"]
    assert values(rows[1], "frame.key_bytes", "frame.header_bytes") == ["0", "0"]
    for row in rows[2:5]:
        assert not any(name.startswith("meshmsg.frame.") for name in row)


def test_heartbeat_shows_its_fields(rows: list[Row]) -> None:
    names = ("first", "next", "first_event", "next_event", "receivers", "ends", "answers")
    shown = values(rows[5], *(f"beat.{name}" for name in names))
    assert shown == ["7", "121", "41", "5001", "3", "1", "1"]
    assert values(rows[5], "flags", "check.status") == ["0x03", "1"]


def test_requests_show_their_ranges(rows: list[Row]) -> None:
    nack, confirm = rows[6], rows[7]
    assert nack["meshmsg.nack.range"] == ["17-19", "40-41"]
    assert nack["meshmsg.nack.range.first"] == ["17", "40"]
    assert nack["meshmsg.nack.range.count"] == ["3", "2"]
    names = ("nack.ranges", "nack.packets", "nack.asker", "check.status")
    assert values(nack, *names) == ["2", "5", f"0x{RECEIVER:016x}", "1"]
    names = ("nack.ranges", "nack.packets", "confirm.receivers", "check.status")
    assert values(confirm, *names) == ["1", "1", "0", "1"]


def test_status_and_parity_show_their_fields(rows: list[Row]) -> None:
    status, parity = rows[8], rows[9]
    names = ("status.next", "status.receiver", "status.window", "check.status")
    assert values(status, *names) == ["120", f"0x{RECEIVER:016x}", str(1 << 20), "1"]
    names = ("first", "packets", "place", "extra", "length", "block")
    block = PROTECTION.block
    wanted = ["17", "4", "1", "2", str(len(block)), block.hex()]
    assert values(parity, *(f"parity.{name}" for name in names)) == wanted


def test_many_packets_are_summed_up(rows: list[Row]) -> None:
    one = "Data #17 events 100-103 (quotes.eu and 1 other)"
    assert rows[10]["info"] == [f"{one} | ... | {one} (5 packets)"]
    assert rows[10]["meshmsg.number"] == ["17"] * 5


def test_info_of_unusual_packets() -> None:
    nothing = BEAT._replace(next=0, first=0, first_event=0, next_event=0, receivers=0, flags=0)
    payloads = [
        nothing.encode(),
        BEAT._replace(first=120, first_event=5000, receivers=1, flags=0).encode(),
        NACKED._replace(ranges=[(n * 2, n * 2 + 1) for n in range(RANGES_MAX)]).encode(),
        NACKED._replace(ranges=[(NUMBER_MAX - 3, NUMBER_MAX - 1)]).encode(),
        REPORT._replace(next=NUMBER_MAX - 1, window_bytes=1).encode(),
        REPORT._replace(window_bytes=0, flags=LEAVES).encode(),
    ]
    shown = dissect(pcap_to(PORT, payloads))
    assert [row["info"][0] for row in shown] == [
        "Heartbeat no packets before 0 no events before 0, 0 receivers",
        "Heartbeat packet 120 event 5000, 1 receiver",
        "NACK 100 ranges, 100 packets: 0, 2, 4, 6, 8, 10, ...",
        f"NACK 1 range, 2 packets: {NUMBER_MAX - 3}-{NUMBER_MAX - 2}",
        f"Status: has all before #{NUMBER_MAX - 1}, room for 1 byte, receiver 0x{RECEIVER:016x}",
        "Status: has all before #120, room for 0 bytes, receiver 0x0000000000005eed, leaves",
    ]
    assert [row.get("meshmsg.status.leaves") for row in shown[-2:]] == [["0"], ["1"]]
    assert not any(is_refused(row) for row in shown)


# What cannot be --------------------------------------------------------------------------------


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def test_malformed_packets_are_marked_with_the_reason() -> None:
    data, beat = SMALL[0], BEAT.encode()
    cases = {
        "a packet of 20 bytes": data[:20],
        "a packet of 47 bytes": data[:47],
        "no payload": data[:48],
        "unknown kind 99": changed(data, 4, b"\x63"),
        "epoch out of range": changed(data, 23, b"\x80"),
        "place 1 of 1 packets": changed(data, 6, b"\1"),
        "a frame without events": changed(data, 46, b"\0\0"),
        "the frame begins before packet 0": changed(LARGE[1], 24, bytes(8)),
        "packet number out of range": changed(data, 31, b"\x40"),
        "event number out of range": changed(data, 39, b"\x40"),
        "a frame over the limit": changed(LARGE[1], 40, b"\x01\0\0\x02"),
        "a frame of 10 bytes in 3 packets": changed(LARGE[1], 40, b"\x0a\0\0\0"),
        "a heartbeat of 59 bytes": beat[:-1],
        "it keeps what does not exist": BEAT._replace(first=122).encode(),
        "number out of range": BEAT._replace(next=NUMBER_MAX).encode(),
        "a request of 0 ranges in 36 bytes": NACKED._replace(ranges=[]).encode(),
        "a request of 2 ranges in 61 bytes": NACKED.encode() + b"x",
        "an empty range": NACKED._replace(ranges=[(5, 5)]).encode(),
        "range out of range": NACKED._replace(ranges=[(NUMBER_MAX, NUMBER_MAX + 1)]).encode(),
        "a status of 51 bytes": REPORT.encode() + b"x",
        "block 5 of 2 over 4 packets": PROTECTION._replace(place=5).encode(),
        "a block of another size": PROTECTION.encode() + b"x",
    }
    shown = dissect(pcap_to(PORT, list(cases.values())))
    for row, (why, payload) in zip(shown, cases.items(), strict=True):
        assert row["_ws.expert.message"][0] == f"Malformed: {why}"
        assert row["info"][0].endswith((f"Malformed: {why}", f"[Malformed: {why}]"))
        assert refused_by_codec(payload)


def test_bad_checksums_are_marked() -> None:
    packets = [BEAT.encode(), NACKED.encode(), CONFIRMED.encode(), REPORT.encode()]
    shown = dissect(pcap_to(PORT, [changed(data, 12, b"~") for data in packets]))
    for row in shown:
        assert row["_ws.expert.message"] == ["Checksum differs"]
        assert row["meshmsg.check.status"] == ["0"]
        assert row["info"][0].endswith("[Bad checksum]")


def test_frames_that_are_not_what_the_packet_promises_are_marked() -> None:
    data = SMALL[0]
    cases = [
        changed(data, len(data) - 1, b"~"),
        changed(data, 48 + 8, b"MMX1"),
        changed(data, 32, b"\x65"),
    ]
    flipped, other, moved = dissect(pcap_to(PORT, cases))
    assert flipped["meshmsg.frame.check.status"] == ["0"]
    assert flipped["_ws.expert.message"] == ["Checksum differs"]
    assert other["_ws.expert.message"] == ["Malformed: the frame has no magic MMF1"]
    promised = ["Malformed: the frame is not the one that the packet promises"]
    assert moved["_ws.expert.message"] == promised
    assert moved["meshmsg.frame.check.status"] == ["1"]


def refused_by_codec(data: bytes) -> bool:
    try:
        fuzz.read(data)
    except ProtocolError:
        return True
    return False


def test_dissector_and_codec_refuse_the_same() -> None:
    rng = random.Random(20_261_116)
    payloads = []
    while len(payloads) < 1500:
        data = fuzz.some_data(rng) if rng.random() < 0.4 else some_packet(rng).encode()
        data = fuzz.mend(fuzz.harm(data, rng), rng) if rng.random() < 0.9 else data
        if data.startswith(PACKET_MAGIC):
            payloads.append(data)
    shown = dissect(pcap_to(PORT, payloads))
    assert len(shown) == len(payloads)
    refused = [refused_by_codec(data) for data in payloads]
    assert 300 < sum(refused) < 1200, "both are really there"
    differing = [
        (data.hex(), row["info"])
        for data, row, codec in zip(payloads, shown, refused, strict=True)
        if is_refused(row) != codec
    ]
    assert differing == []


def test_readable_packets_show_what_the_codec_reads() -> None:
    rng = random.Random(20_261_117)
    packets = [some_packet(rng) for _ in range(300)]
    shown = dissect(pcap_to(PORT, [packet.encode() for packet in packets]))
    for row, packet in zip(shown, packets, strict=True):
        assert values(row, "stream", "epoch") == [f"0x{packet.stream:016x}", str(packet.epoch)]
        match packet:
            case PacketBeat():
                names = ("next", "first", "first_event", "next_event", "receivers")
                shown_ = values(row, *(f"beat.{name}" for name in names))
                assert shown_ == [str(getattr(packet, name)) for name in names]
            case PacketRequest():
                firsts = row["meshmsg.nack.range.first"]
                counts = row["meshmsg.nack.range.count"]
                assert [
                    (int(first), int(first) + int(count))
                    for first, count in zip(firsts, counts, strict=True)
                ] == packet.ranges
                total = sum(stop - first for first, stop in packet.ranges)
                assert values(row, "nack.packets") == [str(total)]
            case PacketStatus():
                names = ("status.next", "status.window")
                assert values(row, *names) == [str(packet.next), str(packet.window_bytes)]
            case PacketParity():
                names = ("first", "place", "packets", "extra")
                shown_ = values(row, *(f"parity.{name}" for name in names))
                assert shown_ == [str(getattr(packet, name)) for name in names]


def test_packets_cut_by_the_capture_are_no_malformed_packets() -> None:
    packets = [*SMALL, *LARGE, BEAT.encode(), NACKED.encode(), REPORT.encode()]
    packets += [PROTECTION.encode(), b"".join(LARGE)]
    for kept in (20 + 8 + 10, 20 + 8 + 32, 20 + 8 + 49):
        shown = dissect(pcap_to(PORT, packets, kept))
        assert not any(is_refused(row) for row in shown)
        assert all("meshmsg.cut" in row for row in shown)


# Which datagrams -------------------------------------------------------------------------------


def test_other_protocols_are_left_alone() -> None:
    others = [b"", b"x", b"MMP", b"MMP2" + bytes(60), b"hello, world"]
    for row in dissect(pcap_to(PORT, others)):
        assert row["protocol"] != ["MESHMSG"]
        assert "meshmsg.malformed" not in row


def test_packets_at_the_ports_of_others_are_known() -> None:
    (row,) = dissect(pcap([(0.0, ("127.0.0.1", 53), (GROUP, 53), SMALL[0])]))
    assert values(row, "number") == ["17"]


def test_everything_at_a_preferred_port_is_taken() -> None:
    way = (("127.0.0.1", 40_000), (GROUP, PORT))
    other = (("127.0.0.1", 40_000), (GROUP, PORT + 9))
    datagrams = [(0.0, *way, b"hello, world"), (0.0, *way, SMALL[0]), (0.0, *other, b"hello")]
    shown = dissect(pcap(datagrams), "-o", f"meshmsg.ports:{PORT}-{PORT + 1}")
    assert shown[0]["info"] == ["Malformed: no magic MMP1"]
    assert values(shown[1], "number") == ["17"]
    assert shown[2]["protocol"] == ["UDP"]


def test_checks_do_not_depend_on_the_codec_of_this_file() -> None:
    """The data that the tests above take for good is good."""
    for data in (*SMALL, *LARGE, *AGAIN):
        assert packet_kind(data) in (DATA, REPAIR)
        check_data_head(DataHead._make(DATA_HEAD.unpack_from(data)), len(data) - DATA_HEAD.size)
    for packet in (BEAT, NACKED, CONFIRMED, REPORT, PROTECTION):
        assert decode_packet(packet.encode()) == packet


# The page --------------------------------------------------------------------------------------


def page() -> str:
    return (captures.ROOT / "docs" / "wireshark.md").read_text(encoding="utf-8")


def block_after(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n```\w*\n(.*?)^```$", page(), re.DOTALL | re.MULTILINE)
    assert found, f"no <!-- {marker} --> with a code block"
    return found[1]


def test_sample_is_up_to_date() -> None:
    wanted = pcap(captures.sample_datagrams())
    assert captures.SAMPLE.read_bytes() == wanted, "run: python -m tests.support.captures"


def test_session_in_the_page_runs() -> None:
    with captures.unprivileged() as (folder, how):
        done = subprocess.run(
            ["sh", "-ec", block_after("session")],
            cwd=folder,
            env=captures.clean_environment(folder),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **how,  # type: ignore[call-overload]
        )
    assert done.returncode == 0, done.stderr
    shown = [line.split() for line in done.stdout.splitlines()]
    assert shown == [line.split() for line in block_after("output").splitlines()]


def test_every_field_is_in_the_page() -> None:
    written = set(re.findall(r"^\| `(meshmsg\.[\w.]+)` \|", page(), re.MULTILINE))
    assert written == set(captures.fields())


def test_filters_in_the_page_select_something() -> None:
    filters = re.findall(r"^\| `([^`]+)` \|", page().partition("## Fields")[0], re.MULTILINE)
    assert filters
    selected = {
        one: len(tshark("-Y", one, capture=captures.SAMPLE.read_bytes()).splitlines())
        for one in filters
    }
    trouble = {one for one in filters if "malformed" in one or "status == 0" in one}
    assert {one for one, count in selected.items() if count == 0} == trouble
    broken = pcap_to(PORT, [SMALL[0][:40], changed(BEAT.encode(), 12, b"~")])
    for one in trouble:
        assert tshark("-Y", one, capture=broken)
