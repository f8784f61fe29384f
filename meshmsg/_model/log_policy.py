"""The words that say how a durable log is kept: `fsync` and `retention`.

What they do is in `recovery/log/commit` and `recovery/log/retention`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from meshmsg._model.errors import ConfigError
from meshmsg._model.units import parse_size, parse_time


@dataclass(frozen=True, slots=True)
class FsyncWord:
    """A parsed `fsync` setting."""

    word: str
    interval_s: float = 0.0

    @property
    def by_thread(self) -> bool:
        """Whether the committer makes things safe."""
        return self.word in ("batch", "interval")

    @classmethod
    def parse(cls, text: str) -> FsyncWord:
        """From `"always"`, `"batch"`, `"interval:50ms"` or `"never"`; raises `ConfigError`."""
        if text in ("always", "batch", "never"):
            return cls(text)
        word, colon, value = str(text).partition(":")
        if word == "interval" and colon:
            with contextlib.suppress(ConfigError):
                interval_s = parse_time("fsync", value)
                if interval_s > 0:
                    return cls("interval", interval_s)
        problem = f"{text!r} is not one of always, batch, interval:50ms, never"
        raise ConfigError("fsync", problem)


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a log is kept; without either, all of it.

    >>> Retention.parse("7d,10GB")
    Retention(age_s=604800.0, bytes_max=10000000000)
    """

    age_s: float | None = None
    """A segment goes when its newest event is older."""
    bytes_max: int | None = None
    """Oldest segments go while all segments together have more bytes."""
    word: str | None = field(default=None, compare=False, repr=False)
    """As it was given."""

    @classmethod
    def parse(cls, text: str | None) -> Retention:
        """From `"7d"`, `"10GB"` or both with a comma; raises `ConfigError`."""
        age_s = bytes_max = None
        for part in [] if text is None else str(text).split(","):
            word = part.strip()
            if word[-1:].lower() == "b":
                bytes_max = parse_size("retention", word)
                continue
            try:
                if not word[-1:].isalpha():
                    raise ConfigError("retention", "a unit is missing")
                age_s = parse_time("retention", word)
                if not age_s:
                    raise ConfigError("retention", "it would keep nothing")
            except ConfigError:
                problem = f"{text!r} is not an age or a size: write '7d', '10GB' or '7d,10GB'"
                raise ConfigError("retention", problem) from None
        return cls(age_s, bytes_max, text)
