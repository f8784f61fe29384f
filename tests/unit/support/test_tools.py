"""How the programs that tests run are installed, with apt-get and id played by small scripts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import tools

SCRIPT = tools.ROOT / "tests" / "install_tools.sh"


class Machine:
    """A PATH of its own in which things can be missing."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.note = folder / "note"
        self.calls = folder / "calls"
        self.calls.touch()
        for name in (
            "sh",
            "sort",
            "tr",
            "rm",
            "grep",
            "tail",
            "tee",
            "touch",
            "chmod",
            "ls",
            "mkdir",
        ):
            path = shutil.which(name)
            assert path
            (self.bin / name).symlink_to(path)
        self.put("id", "echo 0")

    def put(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!{self.bin}/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def put_apt(self, on_install: str, on_update: str = "true") -> None:
        """`on_install` and `on_update` are what apt-get does; both are written down."""
        self.put(
            "apt-get",
            f'for word; do case $word in install|update) echo "$word" >>{self.calls};; esac; done\n'
            f'case "$*" in *install*) {on_install};; *) {on_update};; esac',
        )

    @property
    def installing(self) -> str:
        return f"touch {self.bin}/mm-frobnicate && chmod 755 {self.bin}/mm-frobnicate"

    def install(
        self, needed: str = "mm-frobnicate:frob sh:dash"
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "sh", SCRIPT, self.note],
            env={"PATH": str(self.bin), "TOOLS": needed},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_done_and_said_where_all_is_there(machine: Machine) -> None:
    machine.put("mm-frobnicate", "true")
    machine.put_apt("false")
    machine.note.write_text("of an earlier run")
    done = machine.install()
    assert (done.stdout, done.stderr, machine.calls.read_text()) == ("", "", "")
    assert not machine.note.exists()


def test_what_is_missing_is_installed(machine: Machine) -> None:
    machine.put_apt(machine.installing)
    done = machine.install()
    assert done.stdout == "Installing what the tests run: frob ...\n"
    assert machine.calls.read_text().split() == ["install"]
    assert not machine.note.exists()


def test_what_would_start_a_service_is_only_unpacked(machine: Machine) -> None:
    machine.put("apt-get", f'echo "$*" >>{machine.calls}; touch prometheus_1_all.deb')
    tool = "usr/bin/mm-promtool"
    machine.put("dpkg-deb", f'mkdir -p "$3/usr/bin" && touch "$3/{tool}" && chmod 755 "$3/{tool}"')
    machine.install("mm-promtool:prometheus sh:dash")
    assert machine.calls.read_text().split()[-2:] == ["download", "prometheus"]
    unpacked = machine.note.with_name("tools")
    assert sorted(path.name for path in unpacked.iterdir()) == ["usr"]
    assert (unpacked / tool).exists()
    assert not machine.note.exists()


def test_lists_are_fetched_where_they_are_missing(machine: Machine) -> None:
    lists = machine.bin / "lists"
    machine.put_apt(f"ls {lists} >&2 && {machine.installing}", f"touch {lists}")
    done = machine.install()
    assert machine.calls.read_text().split() == ["install", "update", "install"]
    assert done.stderr == ""
    assert not machine.note.exists()


def test_a_failing_apt_fails_nothing_else(machine: Machine) -> None:
    machine.put_apt("exit 100", "echo 'E: The network is down' >&2; exit 100")
    done = machine.install()
    why = "Not installed: frob (apt-get failed: E: The network is down)"
    assert done.stderr.splitlines() == [why, "The tests that need them are skipped."]
    assert machine.note.read_text().strip() == why


def test_without_root_or_apt_it_says_what_to_install(machine: Machine) -> None:
    assert "(there is no apt-get here)" in machine.install().stderr
    machine.put_apt("false")
    machine.put("id", "echo 1000")
    assert "(only root may install them: apt-get install frob )" in machine.install().stderr
    assert machine.calls.read_text() == ""


# What tests do where a command is missing ------------------------------------------------------


@pytest.fixture
def _outside_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("MESHMSG_CI", raising=False)
    monkeypatch.setattr(tools, "NOTE", tmp_path / "note")


@pytest.mark.usefixtures("_outside_ci")
def test_a_missing_command_skips_the_test_with_the_reason() -> None:
    tools.NOTE.write_text("Not installed: frob (apt-get failed: E: The network is down)\n")
    with pytest.raises(pytest.skip.Exception, match=r"mm-frobnicate not found: .*network is down"):
        tools.need("sh", "mm-frobnicate")


@pytest.mark.usefixtures("_outside_ci")
@pytest.mark.parametrize("name", ["CI", "MESHMSG_CI"])
def test_a_missing_command_fails_the_test_in_ci(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    for said in (False, True):
        if said:
            tools.NOTE.write_text("Not installed\n")
        with pytest.raises(pytest.fail.Exception, match="mm-frobnicate not found"):
            tools.need("mm-frobnicate")


@pytest.mark.usefixtures("_outside_ci")
def test_commands_that_are_there_are_found() -> None:
    assert [Path(path).name for path in tools.need("sh", "ls")] == ["sh", "ls"]
