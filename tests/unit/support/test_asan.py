"""The script of `make asan`: what it names is there, and what it misses it says."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "asan.sh"


def run(compiler: Path | str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", SCRIPT, sys.executable],
        env={"PATH": "/usr/bin:/bin", "CC": str(compiler)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_file_that_it_runs_is_there() -> None:
    match = re.search(r'^tests="([^"]*)"', SCRIPT.read_text(), re.MULTILINE)
    assert match is not None
    named = match[1].split()
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_it_builds_what_the_package_is_built_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (module,) = project["tool"]["setuptools"]["ext-modules"]
    assert sorted(module["sources"]) == sorted(
        f"meshmsg/c/{p.name}" for p in ROOT.glob("meshmsg/c/*.c")
    )


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "there is no compiler"),
        ('echo "${1#*=}"', "has no libasan.so: install it"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, script: str | None, why: str) -> None:
    compiler = tmp_path / "cc"
    if script is not None:
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
    done = run(compiler)
    assert done.returncode == 1
    assert why in done.stderr
