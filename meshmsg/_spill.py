"""Where the spill of a stream lies: in the data directory, or in a temporary folder of its own.

What a process that was killed has left is removed by the next one: it belongs to nobody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile

from meshmsg._codecs import codec_for
from meshmsg._config import PeerConfig, Stream
from meshmsg.recovery.log_folder import LogFolder
from meshmsg.recovery.spill_log import SpillLog, UnsyncedFiles, remove_spill

log = logging.getLogger("meshmsg.peer")

SPILL_FOLDER = "spill"
TEMPORARY = "meshmsg-spill-"


class SpillPlace:
    """The folder in which the streams of one peer spill."""

    def __init__(self, config: PeerConfig) -> None:
        self._config = config
        self._temporary: str | None = None

    def spill_of(self, stream: Stream, name: str, epoch: int) -> SpillLog | None:
        """The spill of a stream that has one of its own.  A durable one has its log."""
        if stream.overflow != "spill" or stream.durability == "log":
            return None
        folder = self._folder()
        remove_spill(LogFolder.of(folder, name, files=UnsyncedFiles()))
        return SpillLog(
            folder,
            name,
            epoch,
            int(stream.spill_bytes),
            mesh=self._config.mesh,
            codec=codec_for(stream.codec).name,
        )

    def _folder(self) -> str:
        if self._config.data_dir is not None:
            return os.path.join(self._config.data_dir, SPILL_FOLDER)
        if self._temporary is None:
            _remove_strays(tempfile.gettempdir())
            self._temporary = tempfile.mkdtemp(prefix=TEMPORARY)
        return self._temporary

    def close(self) -> None:
        """Remove the temporary folder; the spills in it are closed."""
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            _remove_folder(temporary)
        elif self._config.data_dir is not None:
            _remove_folder(os.path.join(self._config.data_dir, SPILL_FOLDER))


def _remove_strays(folder: str) -> None:
    """Remove temporary spills of processes that are gone; those that run hold their locks."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(TEMPORARY)]
    except OSError:
        return
    files = UnsyncedFiles()
    for name in names:
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            streams = files.folders(path)
            if streams and all(
                remove_spill(LogFolder(f"{path}/{s}", files=files)) for s in streams
            ):
                log.info("removed %s, which a process left behind", path)
                _remove_folder(path)


def _remove_folder(path: str) -> None:
    """Remove a folder and those in it, as far as they are empty."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(path, name))
        os.rmdir(path)
