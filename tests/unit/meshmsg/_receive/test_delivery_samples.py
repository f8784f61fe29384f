"""Samples of what a subscription hands over: how old it was, and how many events came together."""

from __future__ import annotations

import pytest

from meshmsg._model.batch import Batch
from meshmsg._model.codecs import MsgpackCodec
from meshmsg._receive.delivery_samples import DeliverySamples
from tests.support.receiving import STREAM, frame

PUBLISHED_NS = frame(0, 1).time


def test_delay_is_that_of_the_first_event_that_is_taken() -> None:
    samples = DeliverySamples()
    samples.add(Batch(frame(0, 5), STREAM, MsgpackCodec()), now_ns=PUBLISHED_NS + 20_000_000)
    some = Batch(frame(5, 10), STREAM, MsgpackCodec(), keep=[2, 4])
    samples.add(some, now_ns=PUBLISHED_NS + 500_000_000)
    found = samples.as_dict()
    assert found["delay_s"]["sum"] == pytest.approx(0.52)
    assert found["delay_s"]["counts"] == [0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    assert found["batch_events"]["sum"] == 7
    assert found["batch_events"]["counts"][:3] == [0, 1, 1]


def test_a_publisher_whose_clock_is_ahead_is_not_early() -> None:
    samples = DeliverySamples()
    samples.add(Batch(frame(0, 1), STREAM, MsgpackCodec()), now_ns=PUBLISHED_NS - 10**9)
    delays = samples.as_dict()["delay_s"]
    assert (delays["sum"], delays["counts"][0]) == (0.0, 1)
