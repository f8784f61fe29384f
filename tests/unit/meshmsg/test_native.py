"""When the compiled core is used, and when the Python beside it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from meshmsg import _native


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = _native.COMPILED
    yield
    _native.COMPILED = before


def compiled(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> bool:
    """Whether a core would be used, where this one is found or none."""
    import meshmsg

    monkeypatch.setitem(sys.modules, "meshmsg._speed", module)  # None: it cannot be imported
    if module is None:
        monkeypatch.delattr(meshmsg, "_speed", raising=False)
    else:
        monkeypatch.setattr(meshmsg, "_speed", module, raising=False)
    return bool(importlib.reload(_native).COMPILED)


def built(interface: int) -> ModuleType:
    module = ModuleType("meshmsg._speed")
    module.INTERFACE = interface  # type: ignore[attr-defined]
    return module


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("MESHMSG_PURE", raising=False)
    return monkeypatch


def test_core_that_was_built_of_these_files_is_used(unset: pytest.MonkeyPatch) -> None:
    assert compiled(unset, built(_native.INTERFACE))


@pytest.mark.parametrize("step", [-1, 1])
def test_core_that_was_built_of_other_files_is_not(unset: pytest.MonkeyPatch, step: int) -> None:
    assert not compiled(unset, built(_native.INTERFACE + step))


def test_without_a_core_python_runs(unset: pytest.MonkeyPatch) -> None:
    assert not compiled(unset, None)


@pytest.mark.parametrize(("word", "used"), [("1", False), ("yes", False), ("0", True), ("", True)])
def test_environment_says_that_python_has_to_run(
    unset: pytest.MonkeyPatch, word: str, used: bool
) -> None:
    unset.setenv("MESHMSG_PURE", word)
    assert compiled(unset, built(_native.INTERFACE)) is used


def test_core_needs_the_lock_of_the_interpreter(unset: pytest.MonkeyPatch) -> None:
    unset.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert not compiled(unset, built(_native.INTERFACE))
