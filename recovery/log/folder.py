"""The folder of one stream in a data directory: its name, what it says of itself, its segments.

A folder is named so that the name gives the stream back: letters, digits, `.`, `_` and `-` stand
for themselves, every other byte is `%` and two hexadecimal digits.  A name over 200 bytes is cut
and ends in `~` and a digest; then only `stream.json` has the whole name.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import msgspec
from crc32c import crc32c

from meshmsg._model.errors import LogError
from meshmsg._wire.control import stream_wire_id
from meshmsg.recovery.log.files import Files, files_here, read_small, replace_small
from meshmsg.recovery.log.format import DATA_START, SegmentName, in_effect, parse_name, read_head

NAME_BYTES_MAX = 200
ABOUT_FILE = "stream.json"
LOCK_FILE = "lock"
CURSORS_FOLDER = "cursors"
ABOUT_BYTES_MAX = 64 * 1024
VERSION = 1
#: The wire id of a folder in which nothing is left that tells it.
UNKNOWN = 0

_SAFE = re.compile(rb"[A-Za-z0-9._-]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
_NAME = re.compile(r"(?:[A-Za-z0-9._-]|%[0-9A-F]{2})+")


def escape(text: str) -> str:
    """A text as a part of a file name that gives it back.

    >>> escape("pricing/orders.**")
    'pricing%2Forders.%2A%2A'
    """
    made = "".join(
        chr(byte) if _SAFE.match(bytes([byte])) else f"%{byte:02X}" for byte in text.encode()
    )
    if made.strip(".") == "":  # "." and ".." are taken
        made = made.replace(".", "%2E")
    if len(made) > NAME_BYTES_MAX:
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        made = f"{made[: NAME_BYTES_MAX - 40]}~{digest}"
    return made


def unescape(name: str) -> str | None:
    """What `escape` was given; `None` if that cannot be told from the name."""
    if not _NAME.fullmatch(name):
        return None
    data = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), name.encode())
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class About:
    """What a folder says of itself."""

    stream: str
    mesh: str
    wire_id: int
    codec: str = "msgpack"

    def encode(self) -> bytes:
        """As JSON, with a check."""
        fields: dict[str, Any] = {
            "version": VERSION,
            "stream": self.stream,
            "mesh": self.mesh,
            "wire_id": f"{self.wire_id:016x}",
            "codec": self.codec,
        }
        return encode_checked(fields)


def encode_checked(fields: dict[str, Any]) -> bytes:
    """A JSON object on one line whose last field is the CRC-32C of the line without it."""
    body = msgspec.json.encode(fields)
    return body[:-1] + b',"crc32c":"%08x"}\n' % crc32c(body)


def decode_checked(data: bytes) -> dict[str, Any] | None:
    """The object, if it is whole and unharmed."""
    body, mark, rest = data.rpartition(b',"crc32c":"')
    if not mark or len(rest) != 11 or rest[8:] != b'"}\n':
        return None
    body += b"}"
    if b"%08x" % crc32c(body) != rest[:8]:
        return None
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return fields if fields.get("version") == VERSION else None


class LogFolder:
    """The folder of one stream."""

    def __init__(self, path: str, *, files: Files | None = None) -> None:
        self.path = path
        self.files = files or files_here()
        self.problems: list[str] = []  #: what was found damaged, in words

    @classmethod
    def of(cls, data_dir: str, stream: str, *, files: Files | None = None) -> LogFolder:
        """The folder of a stream in a data directory."""
        return cls(f"{data_dir.rstrip('/') or '/'}/{escape(stream)}", files=files)

    # --- about ---

    def about(self) -> About | None:
        """What it says of itself, or what its name and its segments say; raises `LogError`."""
        try:
            data = read_small(self.files, f"{self.path}/{ABOUT_FILE}", ABOUT_BYTES_MAX)
        except OSError as error:
            data = b""
            self._problem(f"{ABOUT_FILE} cannot be read: {error.strerror}")
        fields = None if data is None else decode_checked(data)
        found = None if fields is None else _about(fields)
        if found is None:
            if data is not None:
                self._problem(f"{ABOUT_FILE} is damaged")
            found = self._guess()
        return found

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def _guess(self) -> About | None:
        stream = unescape(self.path.rpartition("/")[2])
        for name in reversed(self.segments()):
            try:
                file = self.files.open(f"{self.path}/{name.file}")
            except OSError:
                continue
            try:
                head, _ = read_head(file.read_at(DATA_START, 0), name)
            except OSError:
                head = None
            finally:
                file.close()
            if head is not None:
                label = stream or f"unknown/{head.wire_id:016x}"
                mesh = "default" if stream_wire_id("default", label) == head.wire_id else "?"
                return About(label, mesh, head.wire_id)
        has_any = any(parse_name(file) for file in self.files.names(self.path))
        return About(stream, "?", UNKNOWN) if stream and has_any else None

    def claim(self, about: About) -> None:
        """Say what the folder is for; raises `LogError` if it is for something else."""
        known = self.about()
        if known is not None and known.wire_id not in (UNKNOWN, about.wire_id):
            raise LogError(
                self.path,
                f"holds stream {known.stream!r} of mesh {known.mesh!r}, not {about.stream!r} of "
                f"{about.mesh!r}: give each its own data_dir",
            )
        if known != about or self.problems:
            replace_small(self.files, self.path, ABOUT_FILE, about.encode())

    # --- segments ---

    def sizes(self) -> dict[SegmentName, int]:
        """All segments with the bytes of their files."""
        found = {}
        for file, size in self.files.names(self.path).items():
            name = parse_name(file)
            if name is not None:
                found[name] = size
        return found

    def segments(self) -> list[SegmentName]:
        """The segments that count, in order."""
        return in_effect(self.sizes())


def _about(fields: dict[str, Any]) -> About | None:
    stream, mesh, codec = fields.get("stream"), fields.get("mesh"), fields.get("codec", "msgpack")
    try:
        wire_id = int(fields.get("wire_id", ""), 16)
    except (TypeError, ValueError):
        return None
    if not (isinstance(stream, str) and isinstance(mesh, str) and isinstance(codec, str)):
        return None
    return About(stream, mesh, wire_id, codec)


def find_logs(path: str, *, files: Files | None = None) -> list[LogFolder]:
    """The logs at a path: the folder of a stream itself, or all that a data directory has."""
    own = LogFolder(path.rstrip("/") or "/", files=files)
    files = own.files
    if own.segments() or ABOUT_FILE in files.names(own.path):
        return [own]
    logs = [LogFolder(f"{own.path}/{name}", files=files) for name in files.folders(own.path)]
    return [log for log in logs if log.segments() or ABOUT_FILE in files.names(log.path)]
