"""What people install: the source archive, the wheel made from it, and a checkout in place."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests import rooms
from tests.support.processes import PROGRAMS

PROGRAM = PROGRAMS / "installed.py"
TOP = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "docs/wireshark", "pyproject.toml")
NO_COMPILER = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/cc"}
DOORS = ["meshmsg", "meshmsg.recovery", "meshmsg.transports", "meshmsg.cli", "pyspark_meshmsg"]


def run(*command: object, **settings: str) -> None:
    env = {**os.environ, **settings}
    done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def copy_sources(folder: Path) -> Path:
    """Copy what a build reads: what an earlier build left in the checkout is not in the copy."""
    leave = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    for name in ("meshmsg", *rooms.LINKED, rooms.FINDER):
        shutil.copytree(rooms.ROOT / name, folder / name, symlinks=True, ignore=leave)
    for name in TOP:
        source, target = rooms.ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
    return folder


def make_environment(folder: Path) -> Path:
    """Make an environment without meshmsg that borrows the libraries of this one.

    Python reads no .pth file of a folder that a .pth file names, so the meshmsg that is installed
    here in place stays out.
    """
    venv.create(folder, with_pip=False)
    (python,) = folder.glob("bin/python")
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text("\n".join(site.getsitepackages()))
    return python


def install(python: Path, *what: object, **settings: str) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index")
    run(*pip, "--no-deps", "--no-build-isolation", *what, **settings)


def try_out(python: Path, folder: Path) -> Any:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, PROGRAM],
        input=json.dumps(DOORS),
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source archive, and a wheel that was built from nothing else."""
    folder = tmp_path_factory.mktemp("archives")
    sources = copy_sources(tmp_path_factory.mktemp("sources"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, sources)
    return folder


def installed_path(path: str) -> str:
    return f"meshmsg/{path}" if path.split("/")[0] in rooms.LINKED else path


def test_wheel_has_every_module_and_nothing_else(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert {name for name in names if name.endswith(".py")} == set(
        map(installed_path, rooms.paths())
    )
    assert {"meshmsg/py.typed", "meshmsg/_speed.pyi"} <= set(names)
    page = rooms.ROOT / "meshmsg/monitor/page_files"
    assert {f"meshmsg/monitor/page_files/{file.name}" for file in page.iterdir()} <= set(names)
    compiled = [name for name in names if name.endswith(".so")]
    assert len(compiled) == (1 if shutil.which("cc") else 0)


def test_source_archive_has_what_the_wheel_is_built_from_and_no_tests(archives: Path) -> None:
    (archive,) = archives.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "meshmsg/c/speed.h", "meshmsg/c/module.c"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_wheel_runs_where_it_is_installed(archives: Path, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv")
    install(python, *archives.glob("*.whl"))
    found = try_out(python, tmp_path)
    assert found["data"] == {"text": "hello"}
    assert found["compiled"] == bool(shutil.which("cc"))
    assert Path(found["folder"]).is_relative_to(tmp_path)


def test_source_archive_installs_and_runs_without_a_compiler(
    archives: Path, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "venv")
    install(python, *archives.glob("*.tar.gz"), **NO_COMPILER)
    found = try_out(python, tmp_path)
    assert (found["compiled"], found["data"]) == (False, {"text": "hello"})


def test_checkout_installs_in_place(tmp_path: Path) -> None:
    sources = tmp_path / "checkout"
    sources.mkdir()
    copy_sources(sources)
    python = make_environment(tmp_path / "venv")
    install(python, "--editable", sources, **NO_COMPILER)
    found = try_out(python, tmp_path)
    assert (found["folder"], found["data"]) == (str(sources / "meshmsg"), {"text": "hello"})
