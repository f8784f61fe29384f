"""Which posted webhooks are taken: their signatures, their age, and that each counts once."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SCHEMES = ("standard", "github", "none")
TOLERANCE_MAX_S = 300.0
ID_BYTES_MAX = 256
TYPE_BYTES_MAX = 150
_TYPE = re.compile(r"[^\w.-]+")


class Refusal(Exception):
    """A post that is not taken: the status to answer with, the counter, and why in words."""

    def __init__(self, status: int, counter: str, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.counter = counter


@dataclass(frozen=True, slots=True)
class Claim:
    """What a post says it is, once its signature is right."""

    id: str
    """Under which it is known again."""
    message: str
    """The id that the sender gave it."""
    time: float | None
    type: str


#: Verifies a body against headers and one secret; raises `ValueError` with the reason.
Verify = Callable[[bytes, Mapping[str, str], str], None]


def examine(
    scheme: str,
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    tolerance_s: float,
    verify: Verify,
) -> Claim:
    """The claim of a post whose signature and time are right; raises `Refusal`.

    `headers` have names in lower case.  `verify` checks a Standard Webhooks signature.
    """
    if scheme == "standard":
        return _standard(secrets, headers, body, now, tolerance_s, verify)
    if scheme == "github":
        return _github(secrets, headers, body)
    ident = headers.get("webhook-id") or headers.get("x-github-delivery") or ""
    return Claim(_checked_id(ident) if ident else "", ident, None, "")


def _standard(
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    now: float,
    tolerance_s: float,
    verify: Verify,
) -> Claim:
    ident = _checked_id(headers.get("webhook-id", ""))
    stamp = headers.get("webhook-timestamp", "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise Refusal(400, "malformed", "webhook-timestamp is not a number of seconds")
    problem = "no secret"
    for secret in secrets:
        try:
            verify(body, headers, secret)
            break
        except ValueError as error:
            problem = str(error)
    else:
        stale = "timestamp" in problem.lower()
        raise Refusal(401, "stale" if stale else "bad_signatures", problem)
    if abs(now - int(stamp)) > tolerance_s:
        raise Refusal(401, "stale", "webhook-timestamp is too far from now")
    return Claim(ident, ident, float(stamp), "")


def _github(secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> Claim:
    given = headers.get("x-hub-signature-256", "")
    for secret in secrets:
        expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        if hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
            break
    else:
        raise Refusal(401, "bad_signatures", "X-Hub-Signature-256 is missing or wrong")
    message = headers.get("x-github-delivery", "")[:ID_BYTES_MAX]
    # The id that GitHub sends is not signed, and there is no time: what was signed is the body, so
    # a replay is known by that, whatever id it claims.
    return Claim(given, message, None, headers.get("x-github-event", ""))


def _checked_id(ident: str) -> str:
    if not ident or len(ident.encode(errors="replace")) > ID_BYTES_MAX or not ident.isprintable():
        raise Refusal(400, "malformed", "webhook-id is missing or not a short text")
    return ident


def topic_for(template: str, kind: str) -> str:
    """The topic with the post's type for `{type}`.

    >>> topic_for("hooks.{type}", "user.created"), topic_for("hooks.{type}", "")
    ('hooks.user.created', 'hooks.unknown')
    """
    if "{type}" not in template:
        return template
    levels = [_TYPE.sub("_", level) for level in kind.split(".") if level]
    text = ".".join(levels).encode(errors="replace")[:TYPE_BYTES_MAX].decode(errors="ignore")
    return template.replace("{type}", text.strip(".") or "unknown")


class Memory:
    """Ids that were taken, in memory: the newest so many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, ident: str) -> bool:
        return ident in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, ident: str) -> None:
        """Remember it; the oldest is forgotten if there are too many."""
        self._ids[ident] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
