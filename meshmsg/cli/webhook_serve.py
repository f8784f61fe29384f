"""`meshmsg webhook serve`: posted events into the mesh."""

from __future__ import annotations

import typer


def register(hooks: typer.Typer) -> None:
    """Add the verb."""
