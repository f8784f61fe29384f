"""What the scenarios of discovery share: a mesh of its own for each test."""

from __future__ import annotations

import itertools
import os

import pytest

_numbers = itertools.count()


@pytest.fixture
def mesh() -> str:
    """A mesh that no other test has, nor another run on this machine."""
    return f"test-{os.getpid()}-{next(_numbers)}"
