"""One Spark for all tests of this folder: its start costs more than most of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
#: A Spark that starts on a machine with other work can take minutes.
TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in one worker of xdist: a second Spark would cost as much again."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def connect_port() -> int:
    """Where the Spark of the tests listens for Spark Connect."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def spark(connect_port: int) -> Iterator[Any]:
    """A local Spark of two cores, which takes Spark Connect as well."""
    from meshmsg.spark_sink import session

    made = session(
        "meshmsg tests",
        master="local[2]",
        config={
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": connect_port,
            "spark.sql.session.timeZone": "UTC",
            "spark.log.level": "ERROR",
            "spark.sql.warehouse.dir": "/nonexistent",
        },
    )
    yield made
    made.stop()
