"""The public names of the sink, each loaded with its first use."""

from __future__ import annotations

import pytest

from meshmsg.spark_sink import sink


def test_every_name_is_there() -> None:
    assert [name for name in sink.__all__ if not hasattr(sink, name)] == []
    assert sorted(sink.__all__) == sink.__all__


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = sink.nothing
