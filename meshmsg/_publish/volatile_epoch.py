"""The epoch of streams without a log: from the clock, and greater than those of earlier starts.

A log knows its epochs.  A peer without one knows those that this process has used, and, where it
has a `data_dir`, the one of its last start, which is kept there.  Nobody else is asked: whoever
could answer could push the epochs of others up.
"""

from __future__ import annotations

import logging

from meshmsg.recovery.log.files import files_here, read_small, replace_small
from meshmsg.recovery.log.folder import VERSION, decode_checked, encode_checked, escape
from meshmsg.recovery.log.format import NUMBER_MAX

log = logging.getLogger("meshmsg.peer")

EPOCH_BYTES_MAX = 1024

_newest = 0  # of this process


def volatile_epoch(clock_us: int, name: str, data_dir: str | None) -> int:
    """The epoch of one start of a peer, which no earlier start that is known of has reached."""
    global _newest
    kept = 0 if data_dir is None else _read(data_dir, name)
    _newest = epoch = max(clock_us, _newest + 1, kept + 1)
    if data_dir is not None:
        _keep(data_dir, name, epoch)
    return epoch


def _file(name: str) -> str:
    return f"{escape(name)}.epoch.json"


def _read(data_dir: str, name: str) -> int:
    try:
        data = read_small(files_here(), f"{data_dir}/{_file(name)}", EPOCH_BYTES_MAX)
    except OSError as error:
        log.warning("%s/%s cannot be read: %s", data_dir, _file(name), error.strerror)
        return 0
    epoch = (decode_checked(data or b"") or {}).get("epoch")
    if data and not (type(epoch) is int and 0 <= epoch < NUMBER_MAX):
        log.warning("%s/%s is damaged: the epoch is the clock's", data_dir, _file(name))
        return 0
    return epoch or 0


def _keep(data_dir: str, name: str, epoch: int) -> None:
    """Write it down before it is used; a disk that is full must not keep the peer from starting."""
    try:
        files = files_here()
        files.make_folder(data_dir)
        data = encode_checked({"version": VERSION, "epoch": epoch})
        replace_small(files, data_dir, _file(name), data)
    except OSError as error:
        log.warning("%s: the epoch cannot be kept for the next start: %s", data_dir, error.strerror)
