"""What the tests of Spark share, with a Spark of their own, the shared one, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: A Spark that starts on a machine with other work can take minutes.
TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
