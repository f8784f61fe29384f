"""Tests of Spark's rooms have as much time here as in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import TIMEOUT_S

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
