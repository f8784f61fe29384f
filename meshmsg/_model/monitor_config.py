"""`Monitor`: where a peer shows its figures, who may see them, and when it counts as ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meshmsg._model.errors import ConfigError
from meshmsg._model.security_config import KEY_FILE_BYTES_MAX, read_own
from meshmsg._model.units import parse_size, parse_time, set_field, split_host

#: The word for no endpoint, whatever the environment says.
OFF = "none"
#: A shorter token is guessed.
TOKEN_BYTES_MIN = 16


@dataclass(frozen=True, slots=True)
class Monitor:
    """An HTTP endpoint with `/metrics`, `/health`, `/ready` and `/stats` of a peer.

    >>> Monitor("127.0.0.1:9401", blocked_max="30s").blocked_max
    30.0
    """

    address: str
    """Where it listens: `"127.0.0.1:9401"`; port 0 takes a free one; `"none"` for no endpoint."""
    token: str | None = field(default=None, repr=False)
    """What a request has to bring, as `Authorization: Bearer ...`; needed beyond loopback."""
    token_file: str | None = None
    """A file with it, which nobody else may read."""
    blocked_max: float | str = 10.0
    """A stream that is blocked for longer makes the peer not ready."""
    disk_free_min: int | str = "1GiB"
    """A disk with less than this free makes the peer not ready, if it also has less than
    `disk_share_min`."""
    disk_share_min: float = 0.05
    """The part of a disk that is enough, however small the disk is."""
    series_max: int = 10_000
    """Time series that `/metrics` shows at most; what was left out is counted."""
    required: bool = True
    """Whether the peer refuses to start where the address is taken."""

    def __post_init__(self) -> None:
        if self.address != OFF:
            split_host("monitor.address", self.address)
        if self.token is not None:
            check_token("monitor.token", self.token)
        if hasattr(self.token_file, "__fspath__"):
            set_field(self, "token_file", str(self.token_file))
        if self.token_file is not None and (
            not isinstance(self.token_file, str) or not self.token_file
        ):
            raise ConfigError("monitor.token_file", "is not a path: write it in quotes")
        if self.token is not None and self.token_file is not None:
            raise ConfigError("monitor.token", "give one of token and token_file")
        set_field(self, "blocked_max", parse_time("monitor.blocked_max", self.blocked_max))
        set_field(self, "disk_free_min", parse_size("monitor.disk_free_min", self.disk_free_min))
        share = self.disk_share_min
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise ConfigError("monitor.disk_share_min", f"{share!r} is not a part: write 0.05")
        if type(self.series_max) is not int or self.series_max < 1:
            problem = f"{self.series_max!r} is not a number of time series: write 10000"
            raise ConfigError("monitor.series_max", problem)
        if not isinstance(self.required, bool):
            raise ConfigError("monitor.required", f"{self.required!r} is not true or false")

    @property
    def is_on(self) -> bool:
        """Whether there is an endpoint at all."""
        return self.address != OFF

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        return split_host("monitor.address", self.address)

    def secret(self) -> bytes | None:
        """The token, if there is one; raises `ConfigError`, which never holds it."""
        if self.token_file is None:
            return None if self.token is None else self.token.encode()
        try:
            data = read_own(self.token_file, 0o077, "read it: chmod 600", KEY_FILE_BYTES_MAX)
        except OSError as error:
            raise ConfigError(self.token_file, f"cannot be read: {error.strerror}") from None
        return check_token(self.token_file, data.decode("utf-8", "replace").strip())

    @classmethod
    def of(cls, value: object) -> Monitor | None:
        """What `monitor=` takes: a `Monitor`, an address, or nothing; raises `ConfigError`."""
        if value is None or isinstance(value, Monitor):
            return value
        if not isinstance(value, str):
            raise ConfigError("monitor", f"{value!r} is not an address: write '127.0.0.1:9401'")
        try:
            return cls(value)
        except ConfigError as error:
            raise ConfigError("monitor", error.problem) from None

    @classmethod
    def from_env(cls, value: object, environ: Mapping[str, str]) -> Monitor | None:
        """The same, and where it says nothing `MESHMSG_MONITOR`, or nothing of a token
        `MESHMSG_MONITOR_TOKEN_FILE` or `MESHMSG_MONITOR_TOKEN`."""
        made = cls.of(value)
        if made is None and (address := environ.get("MESHMSG_MONITOR")):
            # Every process that this one starts has the variable too: the first takes the port.
            made = cls(address, required=False)
        if made is None or not made.is_on or made.token is not None or made.token_file is not None:
            return made
        file = environ.get("MESHMSG_MONITOR_TOKEN_FILE") or None
        token = None if file else environ.get("MESHMSG_MONITOR_TOKEN") or None
        return replace(made, token=token, token_file=file)


def check_token(field_name: str, token: object) -> bytes:
    """A token as bytes; raises `ConfigError`, which never holds it."""
    data = token.encode() if isinstance(token, str) else b""
    if len(data) < TOKEN_BYTES_MIN or any(byte <= 32 or byte >= 127 for byte in data):
        problem = f"is not a token: write at least {TOKEN_BYTES_MIN} letters and digits"
        raise ConfigError(field_name, f"{problem}, as `openssl rand -hex 24` makes them")
    return data
