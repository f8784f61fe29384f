"""Rows are plain data."""

from __future__ import annotations

import msgspec

from meshmsg.overview.mesh import Look, MeshView
from meshmsg.overview.rows import View
from tests.support.overviews import peer


def test_a_view_is_json_and_back() -> None:
    view = MeshView().take(Look(peer("a")), now=0.0)
    assert msgspec.json.decode(msgspec.json.encode(view), type=View) == view
