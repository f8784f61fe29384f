"""Where msgpack values stop, found without making any.

The twin of `meshmsg/c/msgpack.c`; a test compares them.  A value that holds others says how many,
so the number of values to come is all there is to keep, however deep they are nested.
"""

from __future__ import annotations

#: What follows a first byte from 0xc0 on: how many bytes, how many of them, from the first on, are
#: a length, and whether that counts bytes (0), values (1) or pairs of them (2).
_LEADS = (
    *((0, 0, 0),) * 4,  # nil, unused, false, true
    *((1, 1, 0), (2, 2, 0), (4, 4, 0)),  # bin
    *((2, 1, 0), (3, 2, 0), (5, 4, 0)),  # ext
    *((4, 0, 0), (8, 0, 0)),  # float
    *((1, 0, 0), (2, 0, 0), (4, 0, 0), (8, 0, 0)) * 2,  # uint, int
    *((2, 0, 0), (3, 0, 0), (5, 0, 0), (9, 0, 0), (17, 0, 0)),  # fixext
    *((1, 1, 0), (2, 2, 0), (4, 4, 0)),  # str
    *((2, 2, 1), (4, 4, 1), (2, 2, 2), (4, 4, 2)),  # array, map
)
_UNUSED = 0xC1


def is_value(data: bytes) -> bool:
    """Tell whether these bytes are one value and nothing else."""
    at, size, to_come = 0, len(data), 1
    while to_come:
        # Each value has a byte at least: a count that promises more than there can be ends it.
        if to_come > size - at:
            return False
        lead = data[at]
        at += 1
        to_come -= 1
        if lead < 0x80 or lead >= 0xE0:
            continue  # a small number
        if lead < 0xA0:
            to_come += (lead & 0x0F) << (lead < 0x90)
        elif lead < 0xC0:
            at += lead & 0x1F
        else:
            more, width, values = _LEADS[lead - 0xC0]
            if more > size - at or lead == _UNUSED:
                return False
            length = int.from_bytes(data[at : at + width], "big")
            at += more if values else more + length
            to_come += length * values
    return at == size


def is_map(data: bytes) -> bool:
    """Tell whether they are one map."""
    return (data[:1] in (b"\xde", b"\xdf") or b"\x80" <= data[:1] < b"\x90") and is_value(data)
