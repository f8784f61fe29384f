"""The compiled core (see `_native`).  Each name does what its Python counterpart does."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from collections.abc import Coroutine as AnyCoroutine
from typing import Any

from typing_extensions import Buffer

from meshmsg._groups.consumer import Member
from meshmsg._model.batch import Batch, Event
from meshmsg._model.codecs import Codec, Undecodable
from meshmsg._model.errors import ProtocolError
from meshmsg._model.event import Position
from meshmsg._receive.subscription_io import Intake
from meshmsg._wire.frame import Frame, FrameBuilder, VarColumn
from meshmsg._wire.tail_frame import TailEntry
from meshmsg.recovery.multicast.packet_runs import Run

INTERFACE: int

def crc32c(data: bytes, by_table: bool, /) -> int: ...
def encode_frame(
    stream: int,
    epoch: int,
    first: int,
    topics: Any,
    payloads: Any,
    times: Any,
    /,
    *,
    raw: bool | bytes = True,
    keys: Mapping[int, str] | None = None,
    headers: Mapping[int, bytes] | None = None,
    length: int = -1,
) -> bytes: ...
def scan(chunk: list[Any], /) -> tuple[bool, int, int]: ...
def set_up_decoder(
    frame: type[Frame],
    column: type[VarColumn],
    tables: dict[bytes, tuple[str, ...]],
    read: Callable[[bytes, int], tuple[str, ...]],
    error: type[ProtocolError],
    /,
) -> None: ...
def read_frame(frame: Frame, data: bytes, /) -> tuple[int, int, int, int] | None: ...
def column_length(
    data: bytes, offsets_at: int, blob_at: int, blob_stop: int, count: int, /
) -> int: ...
def split(
    data: bytes, offsets_at: int, blob_at: int, blob_stop: int, count: int, lo: int, hi: int, /
) -> list[bytes]: ...
def new_frame(data: bytes, /) -> Frame: ...
def set_up_batches(batch: type[Batch], event: type[Event], /) -> None: ...
def whole_batch(frame: Frame, stream: str, codec: Codec, /) -> Batch: ...
def raw_events(
    kind: type[Event], batch: Batch, column: VarColumn, lo: int, hi: int, /
) -> list[Event]: ...
def check_headers(
    data: bytes, offsets_at: int, blob_at: int, blob_stop: int, count: int, bits: bytes, /
) -> None: ...
def is_value_each(
    offsets: Buffer, offsets_at: int, blob: Buffer, blob_at: int, count: int, /
) -> bool: ...
def tail_entries(
    kind: type[TailEntry], data: bytes, at: int, salt: int, number: int, /
) -> list[TailEntry]: ...
def run_length(data: bytes, at: int, packet_bytes: int, /) -> int: ...
def join_records(
    data: bytes, at: int, offset: int, salt: int, stream: int, epoch: int, first: int, limit: int, /
) -> tuple[bytes, int, int, int, int] | None: ...
def join_runs(runs: list[Run], /) -> bytes: ...
def take_next(intake: Intake, data: bytes, now: float, as_events: bool = True, /) -> bool: ...
def data_of(
    event: type[Event], undecodable: type[Undecodable], slow: Callable[[Event], Any], /
) -> Any: ...
def seal_packets(
    encrypt: Callable[[bytes, Any, bytes], bytes],
    data: bytes,
    packet_bytes: int,
    stream: int,
    sender: int,
    number: int,
    into: bytearray,
    /,
) -> None: ...
def open_packets(
    decrypt: Callable[[bytes, Any, bytes], bytes],
    invalid: type[Exception],
    data: bytes,
    at: int,
    packet_bytes: int,
    stream: int,
    sender: int,
    number: int,
    kinds: int,
    /,
) -> tuple[bytes, int]: ...
def make_events(kind: type[Event], batch: Batch, values: list[Any], lo: int, /) -> list[Event]: ...

class OpenFrame(FrameBuilder):
    stream: str
    epoch: int
    due_ns: int
    sent_ns: int
    size_max: int
    large_max: int
    gated: bool
    dirty: bool
    holds: bool
    tail: TailFrame | None

class TailFrame(FrameBuilder):
    at: int
    keepers: int
    shut: bool
    def has_room(self, needed: int, /) -> bool: ...
    def add(
        self,
        topic: str,
        payload: bytes,
        time_ns: int,
        *,
        raw: bool = True,
        key: str | None = None,
        headers: bytes | None = None,
    ) -> bool: ...
    def use(self, area: memoryview, at: int, salt: int, /) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> TailFrame: ...
    def __exit__(self, *_: object) -> None: ...

class Publish:
    def __init__(
        self,
        side: Any,
        routes: dict[str, Any],
        check_notes: Callable[[str | None, Mapping[str, Any] | None], bytes | None],
        position: type[Position],
        time_ns: Callable[[], int] | None = None,
        /,
    ) -> None: ...
    def __call__(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        on_gate: Callable[[], None] | None = None,
    ) -> Position | None: ...

class Coroutine(Awaitable[Any]):
    def __await__(self) -> Generator[Any, Any, Any]: ...
    def send(self, value: Any, /) -> Any: ...
    def throw(self, error: Any, value: Any = None, trace: Any = None, /) -> Any: ...
    def close(self) -> None: ...

class AsyncPublish:
    def __init__(
        self,
        publish: Publish,
        on_gate: Callable[[], None],
        gated: Callable[..., AnyCoroutine[Any, Any, Position]],
        /,
    ) -> None: ...
    def __call__(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> AnyCoroutine[Any, Any, Position]: ...

class Iteration(Iterator[Event]):
    def __init__(self, intake: Intake | Member, next: Callable[[], Any], /) -> None: ...
    def __next__(self) -> Event: ...

class AsyncEvents(AsyncIterator[Event]):
    def __init__(
        self, intake: Intake | Member, next: Callable[[], AnyCoroutine[Any, Any, Event]], /
    ) -> None: ...
    def __anext__(self) -> AnyCoroutine[Any, Any, Event]: ...

class Port:
    got_bytes: int
    emptied: int
    def __init__(self, socket: Any, handle: int, library: str, /) -> None: ...
    def recv(self) -> bytes | None: ...
    def send(self, data: bytes, /) -> bool: ...
    def close(self) -> None: ...

def settle_loans() -> None: ...

# Linux only.

class Datagrams:
    drops: int
    def __init__(self, fd: int, kind: type[tuple[Any, ...]], /) -> None: ...
    def recv(self) -> Any: ...
    def look(self, spin_ns: int, /) -> Any: ...
    def send(self, data: bytes | memoryview, packet_bytes: int, to: bytes, /) -> bool: ...
    def close(self) -> None: ...

def poke(fd: int, /) -> None: ...
