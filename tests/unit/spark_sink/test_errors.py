"""What the Spark source and the sink say when they fail: what to do, and why it was."""

from __future__ import annotations

import errno

import pytest

from meshmsg import ConfigError, EventsLost, LogError, Loss
from meshmsg.spark_sink.errors import (
    REASON_CHARACTERS_MAX,
    JavaMissing,
    LossInRange,
    OtherCheckpoint,
    ShortRead,
    reason_of,
)


def test_errors_are_of_the_kinds_that_users_know() -> None:
    assert issubclass(JavaMissing, ConfigError)
    assert issubclass(OtherCheckpoint, ConfigError)
    assert issubclass(LossInRange, EventsLost)
    assert issubclass(ShortRead, LogError)


def test_a_loss_says_how_to_go_on_and_keeps_what_is_lost() -> None:
    loss = Loss("shop/orders.**", 7, 3, 9, "expired")
    error = LossInRange(loss)
    assert error.loss == loss
    assert str(error).startswith(str(loss))
    assert "failOnLoss=false" in str(error)
    assert "rows=losses" in str(error)


def test_a_short_read_names_the_events_with_both_ends() -> None:
    error = ShortRead("/data", "shop/orders.**", 7, 3, 9)
    assert "shop/orders.** epoch 7 should have events 3 to 8" in str(error)
    assert "/data" in str(error)


def test_another_checkpoint_names_the_option() -> None:
    error = OtherCheckpoint("it is of a topic")
    assert error.field == "checkpointLocation"
    assert str(error).startswith("checkpointLocation: it is of a topic. Give each query")


PROXY = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent):
  File "clientserver.py", line 647, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
  File "sink_tables.py", line 90, in sync
    os.fsync(fd)
{error}

"""
JAVA = """An error occurred while calling o77.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2844)
Caused by: org.apache.spark.SparkException: Task failed while writing rows.
\tat java.base/java.lang.Thread.run(Thread.java:829)
Caused by: java.io.IOException: {error}
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 12 more
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full: "),
        (PROXY.format(error="OSError: [Errno 28] No space left on device"), "the disk is full: "),
        (JAVA.format(error="No space left on device"), "the disk is full: java.io.IOException"),
        (PROXY.format(error="ValueError: what is it"), "ValueError: what is it"),
        (JAVA.format(error="Input/output error"), "java.io.IOException: Input/output error"),
        (KeyError(), "KeyError"),
        ("just this", "just this"),
    ],
)
def test_the_line_that_says_why_is_found(error: BaseException | str, said: str) -> None:
    assert reason_of(error).startswith(said)


def test_a_reason_is_bounded_and_never_empty() -> None:
    assert len(reason_of("x" * 10_000)) == REASON_CHARACTERS_MAX
    assert reason_of(ValueError("  \n \n")) == "ValueError"
    assert reason_of(ValueError("one\n  at java.lang.Thread.run\n")) == "one"
