"""What all tests share: peers of different tests, or of two runs on one machine, must not meet."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import processes

# Read by every peer that is not told otherwise, in this process and those that tests start.
os.environ["MESHMSG_DISCOVERY"] = "none"
for _name in ("MESHMSG_KEYS", "MESHMSG_MESH_KEY", "MESHMSG_MESH_KEY_FILE"):
    os.environ.pop(_name, None)


@pytest.fixture(autouse=True)
def no_process_is_left_behind() -> Iterator[None]:
    """A test that fails in the middle leaves nothing to the next one."""
    with processes.ended():
        yield
