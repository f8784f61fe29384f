"""Programs of the system that tests run, as tshark and chromium.  `make tools` installs them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What `make tools` could not install, and why.
NOTE = ROOT / ".venv" / ".missing-tools"
UNPACKED = NOTE.with_name("tools") / "usr" / "bin"
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", str(UNPACKED)))


def need(*commands: str) -> list[str]:
    """The paths of commands; where one is missing the test is skipped, or fails.

    It fails where there is no excuse: in continuous integration (`MESHMSG_CI` or `CI` is set), and
    where `make tools` would have installed it and was not run.  An empty or "0" is not set.
    """
    paths = [shutil.which(command, path=PATH) for command in commands]
    missing = [name for name, path in zip(commands, paths, strict=True) if path is None]
    if missing:
        why, excused = excuse()
        text = f"{' and '.join(missing)} not found: {why}"
        if excused:
            pytest.skip(text)
        pytest.fail(text)
    return [path for path in paths if path is not None]


def excuse() -> tuple[str, bool]:
    """Why a command is not there, and whether a test may be skipped for it."""
    in_ci = any(os.environ.get(name, "0") not in ("", "0") for name in ("MESHMSG_CI", "CI"))
    if NOTE.exists():
        return NOTE.read_text(encoding="utf-8").strip(), not in_ci
    installable = shutil.which("apt-get", path=PATH) is not None and os.geteuid() == 0
    return "run `make tools`, which installs it where it can", not (in_ci or installable)
