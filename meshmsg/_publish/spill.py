"""Where the spill of a stream lies: in the data directory, or in a temporary folder of its own.

What a process that was killed has left is removed by the next one: it belongs to nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile

from meshmsg._model.codecs import codec_for
from meshmsg._model.config import PeerConfig, Stream
from meshmsg._runtime.private_folder import PrivateFolder, remove_strays
from meshmsg.recovery.log.folder import LOCK_FILE, LogFolder
from meshmsg.recovery.log.spill import SpillLog, UnsyncedFiles, is_spill_file, remove_spill

SPILL_FOLDER = "spill"
TEMPORARY = "meshmsg-spill-"
_NAMES = re.compile(TEMPORARY + ".+")


class SpillPlace:
    """The folder in which the streams of one peer spill."""

    def __init__(self, config: PeerConfig) -> None:
        self._config = config
        self._temporary: PrivateFolder | None = None

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
            remove_strays(tempfile.gettempdir(), _NAMES, _remove_spills)
            self._temporary = PrivateFolder.make(TEMPORARY)
        return self._temporary.path

    def close(self) -> None:
        """Remove the folder; the spills in it are closed."""
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            _remove_folder(temporary.path)
            temporary.close()
        elif self._config.data_dir is not None:
            _remove_folder(os.path.join(self._config.data_dir, SPILL_FOLDER))


def _remove_spills(folder: int) -> None:
    """Remove the spills in an open folder of ours; raises `OSError` where one is in use."""
    for name in os.listdir(folder):
        with PrivateFolder(name, dir_fd=folder, others=0) as stream:
            held = os.open(LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=stream.fd)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for file in filter(is_spill_file, os.listdir(stream.fd)):
                    os.unlink(file, dir_fd=stream.fd)
            finally:
                os.close(held)
        os.rmdir(name, dir_fd=folder)


def _remove_folder(path: str) -> None:
    """Remove a folder and those in it, as far as they are empty."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(path, name))
        os.rmdir(path)
