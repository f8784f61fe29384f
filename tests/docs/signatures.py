"""Signatures as the pages write them."""

from __future__ import annotations

import inspect
from typing import Any


def spelled(function: Any) -> str:
    """A signature without annotations, as the pages write it."""
    parts = []
    star = False
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts.append(f"*{name}")
            star = True
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        default = parameter.default
        empty = default is parameter.empty
        parts.append(name if empty else f"{name}={default!r}".replace("typing.", ""))
    return f"({', '.join(parts)})"
