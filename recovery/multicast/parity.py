"""Forward error correction: parity packets from which lost packets are computed.

Up to `packets` data packets are protected together by `extra` parity packets; any `packets` of all
of them give back the rest.  The code is zfec's Reed-Solomon erasure code.  A group is closed when
it is full and at the end of each burst, so parity never waits for data to come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from meshmsg._model.errors import ConfigError
from meshmsg._wire.packet import LENGTH, PacketParity

#: Parity packets that a receiver remembers.
BLOCKS_MAX = 256

Numbered = tuple[int, bytes]


def has_parity_library() -> bool:
    """Whether zfec is installed."""
    try:
        import zfec  # noqa: F401
    except ImportError:
        return False
    return True


def check_parity_library() -> None:
    """Raises `ConfigError` if the library is not installed."""
    if not has_parity_library():
        raise ConfigError("parity", "needs zfec: pip install 'meshmsg[parity]'")


@lru_cache(maxsize=512)
def _encoder(packets: int, extra: int) -> Any:
    import zfec

    return zfec.Encoder(packets, packets + extra)


@lru_cache(maxsize=512)
def _decoder(packets: int, extra: int) -> Any:
    import zfec

    return zfec.Decoder(packets, packets + extra)


def _blocks(group: list[bytes]) -> list[bytes]:
    size = max(map(len, group)) + LENGTH.size
    return [(LENGTH.pack(len(packet)) + packet).ljust(size, b"\0") for packet in group]


def parity_packets(
    stream: int, epoch: int, first: int, group: list[bytes], extra: int
) -> list[bytes]:
    """The parity packets of consecutive data packets."""
    count = len(group)
    codes = _encoder(count, extra).encode(_blocks(group), tuple(range(count, count + extra)))
    return [
        PacketParity(stream, epoch, first, place, count, extra, bytes(block)).encode()
        for place, block in enumerate(codes)
    ]


class ParityDecoder:
    """Remembers parity packets and gives back what is lost, once enough is there."""

    __slots__ = ("_blocks", "_groups")

    def __init__(self) -> None:
        self._groups: OrderedDict[int, dict[int, PacketParity]] = OrderedDict()
        self._blocks = 0

    def on_parity(self, parity: PacketParity, have: Mapping[int, bytes]) -> list[Numbered]:
        """A parity packet came; returns the packets that can be computed with what we `have`."""
        group = self._groups.get(parity.first)
        if group is None:
            group = self._groups[parity.first] = {}
        known = next(iter(group.values()), parity)
        shape = (parity.packets, parity.extra, len(parity.block))
        if shape != (known.packets, known.extra, len(known.block)):
            return []  # not of one group, whatever it says
        self._blocks += parity.place not in group
        group[parity.place] = parity
        while self._blocks > BLOCKS_MAX:
            self._blocks -= len(self._groups.popitem(last=False)[1])
        numbers = range(parity.first, parity.first + parity.packets)
        missing = [number for number in numbers if number not in have]
        if not missing or len(missing) > len(group):
            return []
        return self._compute(parity, group, missing, have)

    def _compute(
        self,
        parity: PacketParity,
        group: Mapping[int, PacketParity],
        missing: list[int],
        have: Mapping[int, bytes],
    ) -> list[Numbered]:
        size = len(parity.block)
        blocks: list[bytes] = []
        places: list[int] = []
        spare = iter(sorted(group))
        for at in range(parity.packets):
            packet = have.get(parity.first + at)
            if packet is None:
                place = next(spare)
                blocks.append(group[place].block)
                places.append(parity.packets + place)
            elif len(packet) + LENGTH.size <= size:
                blocks.append((LENGTH.pack(len(packet)) + packet).ljust(size, b"\0"))
                places.append(at)
            else:
                return []  # what we have is not what was protected
        decoded = _decoder(parity.packets, parity.extra).decode(blocks, places)
        found: list[Numbered] = []
        for number in missing:
            block = bytes(decoded[number - parity.first])
            (length,) = LENGTH.unpack_from(block)
            if length + LENGTH.size <= len(block):
                found.append((number, block[LENGTH.size : LENGTH.size + length]))
        return found
