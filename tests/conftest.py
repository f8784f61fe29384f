"""What all tests share.

Peers of different tests, or of two runs on one machine, must not meet.  Tests that share something
costly run in one worker of xdist.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.support import failures, processes

#: Folders whose tests share what costs more to have twice than they take.
TOGETHER = ("tests/spark/session/", "tests/test_packaging.py")

#: Tests run for seconds: a Java that starts quickly is worth more than one that runs quickly, and
#: what it compiles for later it would take from the other tests.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# An example that waits for its turn on a busy machine is no slow example.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Read by every peer that is not told otherwise, in this process and those that tests start.
os.environ["MESHMSG_DISCOVERY"] = "none"
for _name in ("MESHMSG_KEYS", "MESHMSG_MESH_KEY", "MESHMSG_MESH_KEY_FILE"):
    os.environ.pop(_name, None)
# Read by every Spark driver, in the processes that tests start as well.
os.environ.setdefault("SPARK_SUBMIT_OPTS", JAVA)
# Thousands of processes run the same code: it is compiled once, whatever the shell says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell without job control has background jobs ignore Ctrl-C, and all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


failures.install()


def together(nodeid: str) -> str:
    """What a test runs in one worker with: its folder, or nothing but itself."""
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid)


@pytest.hookimpl(optionalhook=True)  # there is none without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadgroup`.

    Marks would do where xdist finds them: it writes groups into names that pytest 9.2 never reads.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the peers of a test that fails were like."""
    report = yield
    said = failures.figures(call.excinfo.value) if report.failed and call.excinfo else ""
    if said:
        report.sections.append(("Peers when it failed", said))
    if report.when == "teardown":
        failures.begin()
    return report


@pytest.fixture(autouse=True)
def no_process_is_left_behind() -> Iterator[None]:
    """A test that fails in the middle leaves nothing to the next one."""
    with processes.ended():
        yield


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    """Thousands of failures on purpose need no words."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def logs_are_as_they_were() -> Iterator[None]:
    """The command, run inside a test, writes logs to what is closed after the test."""
    logger = logging.getLogger("meshmsg")
    state = (logger.propagate, logger.level, list(logger.handlers))
    yield
    logger.propagate, logger.level, logger.handlers[:] = state
    if "meshmsg.cli._logs" in sys.modules:
        sys.modules["meshmsg.cli._logs"]._lines = None  # type: ignore[attr-defined]
