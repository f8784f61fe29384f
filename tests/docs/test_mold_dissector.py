"""MoldUDP64 as the real tshark sees it, on traffic of the real loopback interface."""

from __future__ import annotations

import json
import os
import random
import socket

import pytest

from market.simulator import Simulator
from meshmsg.moldudp.itch import encode_message
from meshmsg.moldudp.packets import HEAD_BYTES, decode_packet
from meshmsg.moldudp.receiver import MoldMessages
from meshmsg.moldudp.sockets import MoldListener, MoldSender
from tests.support.captures import Capture, CaptureFailed, tshark
from tests.support.ports import free_port
from tests.support.tools import need

FIELDS = ("moldudp64.session", "moldudp64.sequence", "moldudp64.count", "moldudp64.msglen")
FIELDS += ("moldudp64.msgseq", "moldudp64.msgdata", "udp.dstport", "udp.payload")
WRONG = ("moldudp64.msglen.invalid", "moldudp64.count.invalid", "_ws.malformed")
ITCH = ("nasdaq-itch.message_type",)


@pytest.fixture(autouse=True, scope="module")
def _tools() -> None:
    need("tshark", "dumpcap")


def day() -> list[bytes]:
    market = Simulator(5, 1000, 3)
    ticks = (market.open(), market.until(1.0), market.close())
    return [encode_message(message) for tick in ticks for message in tick.feed]


def dissected(capture: bytes, ports: list[int], *more: str) -> list[dict[str, list[str]]]:
    names = [option for name in (*FIELDS, *WRONG, *ITCH) for option in ("-e", name)]
    decode = [option for port in ports for option in ("-d", f"udp.port=={port},moldudp64")]
    text = tshark(*decode, *more, "-Y", "moldudp64", "-T", "json", *names, capture=capture)
    return [packet["_source"].get("layers", {}) for packet in json.loads(text)]


def test_tshark_reads_a_whole_session_with_requests_as_we_do() -> None:
    messages = day()
    ports = [free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_DGRAM)]
    lines = [f"239.255.7.{61 + n}:{port}" for n, port in enumerate(ports)]
    rng = random.Random(3)
    try:
        with MoldSender(lines, session="DAY1") as sender:
            server = int(sender.address.rpartition(":")[2])
            with (
                Capture(*ports, server) as capture,
                MoldListener(lines, server=sender.address) as listener,
            ):
                listener.fault = lambda packet: rng.random() < 0.5
                got: list[bytes] = []
                for first in range(0, len(messages), 10):
                    sender.send(messages[first : first + 10])
                while len(got) < len(messages):
                    for item in listener.get(timeout=30):
                        assert isinstance(item, MoldMessages)
                        got += item.messages
                assert got == messages
                assert listener.stats()["requests"] > 0
                sender.finish()
    except CaptureFailed as error:
        if os.geteuid() == 0:
            raise
        pytest.skip(f"capturing takes root: {error}")
    rows = dissected(capture.data, [*ports, server])
    assert not any(name in row for row in rows for name in WRONG)
    seen: dict[int, bytes] = {}
    kinds = set()
    for row in rows:
        payload = bytes.fromhex(row["udp.payload"][0].replace(":", ""))
        assert row["moldudp64.session"] == ["DAY1      "]
        count = int(row["moldudp64.count"][0])
        if row["udp.dstport"] == [str(server)]:
            kinds.add("request")
            assert len(payload) == HEAD_BYTES
            continue
        packet = decode_packet(payload)
        kinds.add("ends" if packet.ends else "data" if packet.messages else "heartbeat")
        assert row["moldudp64.sequence"] == [str(packet.first)]
        assert count == (0xFFFF if packet.ends else len(packet.messages))
        numbers = [int(number) for number in row.get("moldudp64.msgseq", [])]
        assert numbers == list(range(packet.first, packet.stop))
        data = [bytes.fromhex(one.replace(":", "")) for one in row.get("moldudp64.msgdata", [])]
        assert tuple(data) == packet.messages
        seen |= dict(zip(numbers, data, strict=True))
    assert [seen[number] for number in sorted(seen)] == messages
    assert {"data", "request", "ends"} <= kinds
    itch = dissected(capture.data, ports, "-d", "moldudp64.payload,nasdaq_itch")
    check_types(itch)


def check_types(rows: list[dict[str, list[str]]]) -> None:
    """Wireshark's ITCH dissector knows versions 2 and 3: of 5.0 it can tell the type alone."""
    letters = set()
    for row in rows:
        packet = decode_packet(bytes.fromhex(row["udp.payload"][0].replace(":", "")))
        found = [_letter(one) for one in row.get("nasdaq-itch.message_type", [])]
        assert found == [chr(message[0]) for message in packet.messages]
        letters |= set(found)
    assert set("SRADEXUP") <= letters


def _letter(value: str) -> str:
    """As tshark writes a character, by its version: 'A', 0x41 or 65."""
    return value.strip("'") if value.startswith("'") else chr(int(value, 0))
