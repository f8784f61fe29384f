"""What a peer finds by the room's name."""

from __future__ import annotations

import pytest

from meshmsg import ConfigError, Peer, PeerConfig, otel
from meshmsg._model import batch
from meshmsg._model.config import otel_from_env


def test_opening_puts_spans_round_blocks_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_around", None)
    assert otel.open_spans("shop", lambda headers: True) is not None
    assert isinstance(batch._around, otel.WithEvent)


def test_what_the_environment_says_counts_where_nothing_is_given() -> None:
    assert otel_from_env(None, {}) is None
    assert otel_from_env(None, {"MESHMSG_OTEL": "1"}) is True
    assert otel_from_env(False, {"MESHMSG_OTEL": "1"}) is False
    with pytest.raises(ConfigError, match="MESHMSG_OTEL"):
        otel_from_env(None, {"MESHMSG_OTEL": "yes"})
    with pytest.raises(ConfigError, match="otel"):
        PeerConfig("a", otel="yes")  # type: ignore[arg-type]
    assert Peer("a").config.otel is None
