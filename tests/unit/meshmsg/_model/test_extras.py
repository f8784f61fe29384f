"""A library that is not there is told by the extra that brings it."""

from __future__ import annotations

import json

import pytest

from meshmsg._model.errors import ConfigError
from meshmsg._model.extras import need


def test_what_is_there_is_imported() -> None:
    assert need("json", "x", "what") is json


def test_what_is_not_there_is_told_with_its_extra() -> None:
    with pytest.raises(ConfigError) as caught:
        need("no_such_library.part", "spark", "the sink")
    assert str(caught.value) == "the sink: needs no_such_library: pip install 'meshmsg[spark]'"
    assert caught.value.__cause__ is None
