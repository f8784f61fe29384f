"""What docs/wire-format.md says of multicast packets is so: bytes, tables, code and limits."""

from __future__ import annotations

import re
import struct

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from meshmsg._access.multicast_keys import derive_of
from meshmsg._model.security_config import Security
from meshmsg._wire import packet
from meshmsg._wire.frame import Frame, encode_frame
from meshmsg._wire.multicast_info import MulticastInfo, SealInfo
from meshmsg.recovery.multicast.packet_receiver import JUMP_PACKETS_MAX
from meshmsg.recovery.multicast.parity import parity_packets
from meshmsg.recovery.multicast.seal import Sealer
from tests.docs.test_docs import EPOCH, ROOT, WIRE_ID, dumped, page, section, tables
from tests.support.packets import code_blocks, cut_frame

TIME_NS = 1_700_000_000_123_456_789
FRAME = encode_frame(
    WIRE_ID, EPOCH, 42, "quotes.eu", [msgspec.msgpack.encode(7)], TIME_NS, raw=False
)


def cut(kind: int) -> list[bytes]:
    head = {"stream": WIRE_ID, "epoch": EPOCH, "number": 17, "first": 42, "events": 1}
    return cut_frame(FRAME, payload_bytes=64, kind=kind, **head)


def multicast() -> str:
    return section(page("wire-format.md"), "## Multicast packets")


PARITY = parity_packets(WIRE_ID, EPOCH, 17, cut(packet.DATA), 1)[0]
EXAMPLES = {
    "data": cut(packet.DATA)[0],
    "repair": cut(packet.REPAIR)[1],
    "heartbeat": packet.PacketBeat(
        WIRE_ID, EPOCH, 121, 7, 41, 5001, 3, flags=packet.ANSWERS
    ).encode(),
    "nack": packet.PacketRequest(packet.NACK, WIRE_ID, EPOCH, 5, [(17, 20), (40, 42)]).encode(),
    "confirm": packet.PacketRequest(packet.CONFIRM, WIRE_ID, EPOCH, 0, [(17, 20)]).encode(),
    "status": packet.PacketStatus(WIRE_ID, EPOCH, 120, 5, 1 << 20).encode(),
    "parity": PARITY,
}


def sealed(data: bytes) -> bytes:
    sealer = Sealer(WIRE_ID, 0x0123456789ABCDEF)
    sealer.use(472_222, bytes(range(32)))
    sealer.counter = 5
    return bytes(sealer.seal(data, len(data)))


EXAMPLES["sealed"] = sealed(EXAMPLES["nack"])


def test_sealed_packet_in_the_page_opens_as_it_is_described() -> None:
    """With nothing but what the page says."""
    data = dumped("packet sealed")
    info = b"meshmsg multicast sender 1" + data[16:24]
    key = HKDF(SHA256(), 32, None, info).derive(bytes(range(32)))
    opened = AESGCM(key).decrypt(data[20:32], data[32:], data[:32])
    assert b"MMP1" + data[4:16] + opened == EXAMPLES["nack"]
    assert data[24:30] == bytes([5, 0, 0, 0, 0, 0])
    assert data[30:32] == struct.pack("<H", 472_222 % 65_536)


def test_stream_key_follows_from_the_mesh_key_as_it_is_described() -> None:
    security = Security(mesh_key="Zq3-uY8hJx0_vB5nRkT2wLmEo7sD1fGc9aXpQi4HyUz")
    info = b"multicast stream" + WIRE_ID.to_bytes(8, "little") + (9).to_bytes(8, "little")
    key = HKDF(SHA256(), 32, b"meshmsg mesh key 1", info).derive(security.keys[0])
    assert derive_of(security, WIRE_ID)(9) == (key,)


def test_seal_info_is_described_field_by_field() -> None:
    described = tables(section(page("wire-format.md"), "### `subscribed`"))[1]
    assert described == list(SealInfo.__struct_fields__)


@pytest.mark.parametrize("name", EXAMPLES)
def test_packet_in_the_page_is_real(name: str) -> None:
    assert dumped(f"packet {name}") == EXAMPLES[name]


def test_packets_in_the_page_join_to_the_frame() -> None:
    data, repair = dumped("packet data"), dumped("packet repair")
    frame = Frame(data[packet.DATA_HEAD.size :] + repair[packet.DATA_HEAD.size :])
    assert (frame.first, frame.topic_at(0), frame.payload_at(0)) == (42, "quotes.eu", b"\7")
    assert f"in a frame of {len(FRAME)} bytes" in multicast().replace("\n", " ")


def test_parity_in_the_page_follows_from_the_code_as_it_is_described() -> None:
    """By Lagrange's formula, which the library does not use; and back again."""
    parity = packet.decode_packet(dumped("packet parity"))
    assert isinstance(parity, packet.PacketParity)
    packets = cut(packet.DATA)
    size = 2 + max(map(len, packets))
    blocks = [(struct.pack("<H", len(data)) + data).ljust(size, b"\0") for data in packets]
    assert parity.block == code_blocks(blocks, [0, 1], 2)
    assert code_blocks([blocks[1], parity.block], [1, 2], 0) == blocks[0]


@pytest.mark.parametrize(("count", "extra"), [(1, 1), (2, 3), (16, 2), (128, 64)])
def test_the_library_codes_as_described(count: int, extra: int) -> None:
    packets = [bytes([number]) * (number % 5 + 1) for number in range(count)]
    blocks = [(struct.pack("<H", len(data)) + data).ljust(7, b"\0") for data in packets]
    longest = 2 + max(map(len, packets))
    blocks = [block[:longest] for block in blocks]
    for place, data in enumerate(parity_packets(WIRE_ID, EPOCH, 0, packets, extra)):
        if place in (0, extra - 1):
            wanted = code_blocks(blocks, range(count), count + place)
            assert data[40:] == wanted


# Tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "size"),
    [
        ("Head", packet.HEAD.size),
        ("Data and repair", packet.DATA_HEAD.size),
        ("Heartbeat", len(EXAMPLES["heartbeat"])),
        ("Status report", len(EXAMPLES["status"])),
        ("Parity", 40),
    ],
)
def test_offsets_add_up(heading: str, size: int) -> None:
    text = section(page("wire-format.md"), f"### {heading}")
    rows = re.findall(r"^\| (\d+) \| (\d*|`length`) \| ", text, re.MULTILINE)
    at = 0
    for offset, length in rows:
        assert int(offset) == at
        at += int(length) if length.isdecimal() else 0
    assert at == size


def test_kinds_are_those_of_the_codec() -> None:
    rows = re.findall(r"^\| (\d) \| ([A-Za-z]+) \|", section(multicast(), "### Head"), re.MULTILINE)
    names = {"confirmation": "CONFIRM"}
    written = {names.get(name, name.upper()): int(kind) for kind, name in rows}
    kinds = ("DATA", "REPAIR", "HEARTBEAT", "NACK", "CONFIRM", "STATUS", "PARITY")
    assert written == {name: getattr(packet, name) for name in kinds}


@pytest.mark.parametrize("heading", ["Heartbeat", "Status report"])
def test_flags_are_those_of_the_codec(heading: str) -> None:
    text = section(multicast(), f"### {heading}")
    rows = re.findall(r"^\| (\d) \| `([A-Z]+)` \|", text, re.MULTILINE)
    assert rows
    for bit, name in rows:
        assert getattr(packet, name) == int(bit)


def test_multicast_info_is_described_field_by_field() -> None:
    described = tables(section(page("wire-format.md"), "### `welcome`"))[2]
    assert described == list(MulticastInfo.__struct_fields__)


def test_bounds_are_those_of_the_code() -> None:
    text = multicast()
    assert packet.NUMBER_MAX == 1 << 62
    assert f"how many ranges, 1 to {packet.RANGES_MAX};" in text
    assert f"packets protected, 1 to {packet.PARITY_DATA_MAX}," in text
    assert f"parity blocks that there are, 1 to {packet.PARITY_EXTRA_MAX} |" in text
    assert f"(this implementation: {JUMP_PACKETS_MAX:,})" in text
    limits = section(page("wire-format.md"), "## Limits")
    assert f"| ranges in a NACK packet | {packet.RANGES_MAX} |" in limits
    assert "| packet numbers, event numbers of multicast streams | below 2^62 |" in limits


def enforced() -> list[tuple[str, str]]:
    """Each file that the table of authority names, and each function of it."""
    found: list[tuple[str, str]] = []
    for row in section(page("wire-format.md"), "## Authority").splitlines():
        cells = row.split("|")
        path = ""
        for name in re.findall(r"`([^`]+)`", cells[4]) if len(cells) == 6 else []:
            if name.endswith((".py", ".c")):
                path, function = name, ""
            elif "." in name or not path:
                module, _, function = name.rpartition(".")
                path = module.replace(".", "/") + ".py"
            else:
                function = name
            found.append((path, function))
    return found


def test_table_of_authority_names_code_that_exists() -> None:
    places = enforced()
    assert len(places) > 30
    for path, function in places:
        file = next(f for f in (ROOT / path, ROOT / "meshmsg" / path) if f.is_file())
        assert not function or re.search(rf"def {function}\(", file.read_text()), (path, function)
