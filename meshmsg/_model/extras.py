"""Libraries that only some need, imported when they are; and what is said where they are not."""

from __future__ import annotations

import importlib
from types import ModuleType

from meshmsg._model.errors import ConfigError


def need(module: str, extra: str, what: str) -> ModuleType:
    """The module, or `ConfigError` that says which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise ConfigError(what, f"needs {missing}: pip install 'meshmsg[{extra}]'") from None
