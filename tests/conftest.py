"""What all tests share: peers of different tests, or of two runs on one machine, must not meet."""

from __future__ import annotations

import os

# Read by every peer that is not told otherwise, in this process and those that tests start.
os.environ["MESHMSG_DISCOVERY"] = "none"
for _name in ("MESHMSG_KEYS", "MESHMSG_MESH_KEY", "MESHMSG_MESH_KEY_FILE"):
    os.environ.pop(_name, None)
