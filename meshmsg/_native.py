"""Whether the compiled core is in use: `meshmsg._speed`, built from the files in `c/`.

It is optional.  Without it the same code in Python runs, slower and otherwise alike: where it was
not built, where there is no GIL (it rests on it), on a Python other than CPython, or where the
environment says `MESHMSG_PURE=1`.
"""

from __future__ import annotations

import os
import sys

#: What the Python code expects of the module: one that was built from older files is not used.
INTERFACE = 12


def _is_usable() -> bool:
    if os.environ.get("MESHMSG_PURE", "0") not in ("", "0"):
        return False
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    try:
        from meshmsg import _speed
    except ImportError:
        return False
    return _speed.INTERFACE == INTERFACE


COMPILED = _is_usable()
