"""What a member of a work group asks for, and what it is told by the control channel."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from meshmsg._model.codecs import Codec
from meshmsg._model.topics import TopicFilter
from meshmsg._receive.incoming_stream import StartAt, Sweep
from meshmsg._wire.control import Gone, StreamInfo


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """What a member asks of its group."""

    group: str
    prefetch: int
    ack_timeout_s: float
    max_attempts: int
    order: str
    auto_ack: bool


@dataclass(frozen=True, slots=True)
class MemberSetup:
    """Who a member is and what it takes, for good."""

    sub: int
    topics: TopicFilter
    options: MemberOptions
    mesh: str
    codec: Codec | None
    type: Any
    start: StartAt


@dataclass(frozen=True, slots=True)
class Asked:
    """A publisher has streams for the member: it is to ask to be taken."""

    link: Any
    infos: list[StreamInfo]
    name: str
    born: Set[str]  #: which streams are new, and all of them is for us
    anew: bool  #: the connection is new: nobody there knows us


@dataclass(frozen=True, slots=True)
class Attached:
    """A publisher has taken the member: connect, and expect work."""

    link: Any
    address: str
    epochs: dict[str, int]
    key: bytes = b""  #: what the socket there must have
    generations: Mapping[str, int] = field(default_factory=dict)  #: of the group, where not 0


@dataclass(frozen=True, slots=True)
class Parted:
    """The publisher does not count the member as one of its own (any more)."""

    link: Any
    reason: str


Notice = Asked | Attached | Parted | Sweep | Gone
