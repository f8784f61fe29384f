"""A program that asks a multicast sender for repairs as fast as it can.

    python tests/support/programs/flood.py GROUP PORT INTERFACE STREAM_ID EPOCH STOP

Asks for packets up to STOP, all of them each time, until its input ends; then prints how many
requests it sent.
"""

from __future__ import annotations

import random
import select
import socket
import sys

from meshmsg._wire.packet import NACK, PacketRequest


def main() -> None:
    group, port, interface, stream, epoch, stop = sys.argv[1:]
    rng = random.Random(1)
    packets = []
    for asker in range(64):
        starts = sorted(rng.sample(range(max(101, int(stop))), 100))
        ranges = [(first, first + 5) for first in starts]
        request = PacketRequest(NACK, int(stream), int(epoch), asker, ranges)
        packets.append(request.encode())
    packets.append(PacketRequest(NACK, int(stream), int(epoch), 1, [(0, 1 << 31)]).encode())
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0 if interface[:4] == "127." else 1)
    target, sent = (group, int(port)), 0
    print("flooding", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for packet in packets:
            sock.sendto(packet, target)
        sent += len(packets)
    print(sent)


if __name__ == "__main__":
    main()
