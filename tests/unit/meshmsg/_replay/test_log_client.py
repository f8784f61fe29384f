"""Reading a peer's logs: exactly the range that was asked for, or an error that says why not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meshmsg import ClosedError, ConfigError, Loss, ReplayError, Security, TopicError
from meshmsg._access.allow_list import Grant
from meshmsg._access.key_files import allow, new_folder
from meshmsg._access.keyring import Keyring, logs_transcript
from meshmsg._replay import log_client
from meshmsg._replay.log_client import LogEpoch, ReplayClient
from meshmsg._wire.control import (
    Credit,
    LogInfo,
    Logs,
    LogsPlease,
    Message,
    Part,
    Ping,
    Read,
    Refused,
    Unknown,
    decode_message,
    encode_message,
)
from meshmsg.transports.zmq.context import Context
from meshmsg.transports.zmq.control import ControlServer
from meshmsg.transports.zmq.zap import ZapServer
from tests.support.recording import MESH, STREAM, run_of
from tests.support.waiting import wait_until

KEY = "Zq3-uY8hJx0_vB5nRkT2wLmEo7sD1fGc9aXpQi4HyUz"
EPOCH = 6
Answer = Callable[[Any], list[tuple[Message, list[bytes]]]]


class Server:
    """A peer that answers as it is told."""

    def __init__(self, answer: Answer, keyring: Keyring | None = None) -> None:
        self.answer = answer
        self.heard: list[Any] = []
        self.context = Context(None if keyring is None else keyring.curve)
        self._zap = None if keyring is None else ZapServer(self.context)
        self.server = ControlServer(self.context)
        self.address = self.server.bind("tcp://127.0.0.1:*")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.server.wait(0.02)
            while self._zap is not None and (request := self._zap.recv()) is not None:
                self._zap.accept(request, b"")
            while (asked := self.server.recv()) is not None:
                message = decode_message(asked.parts[0])
                self.heard.append(message)
                for said, frames in self.answer(message):
                    parts = [encode_message(said), *([b"".join(frames)] if frames else [])]
                    assert self.server.may_queue(asked.identity, parts)
                    self.server.send(asked.identity, parts)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self.server.close(0.0)
        if self._zap is not None:
            self._zap.close()
        self.context.close()


@pytest.fixture
def ask() -> Iterator[Callable[..., tuple[Server, ReplayClient]]]:
    made: list[Any] = []

    def begin(
        answer: Answer, keyring: Keyring | None = None, **options: Any
    ) -> tuple[Server, ReplayClient]:
        server = Server(answer, keyring)
        made.append(server)
        given = {"mesh": MESH, "timeout": 60.0, **options}
        client = ReplayClient(server.address, **given)
        made.append(client)
        return server, client

    yield begin
    for one in reversed(made):
        one.close()


def nothing(_: Any) -> list[Any]:
    return []


# Which logs there are --------------------------------------------------------------------------


def info(stream: str, *epochs: tuple[int, int, int], topics: str = "a.**") -> LogInfo:
    return LogInfo(stream, topics, "msgpack", (0, 0), list(epochs))


def test_pages_about_one_log_become_one(ask: Any) -> None:
    def answer(asked: Any) -> list[Any]:
        n = asked.number
        return [
            (Logs(n, "pub", [info("pub/b", (1, 0, 2))], more=True), []),
            (Logs(n, "pub", [info("pub/b", (2, 0, 5)), info("pub/a")], page=1), []),
        ]

    server, client = ask(answer)
    one, two = client.logs("a.*", "b")
    assert [one.stream, two.stream] == ["pub/a", "pub/b"]
    assert two.epochs == (LogEpoch(1, 0, 2), LogEpoch(2, 0, 5))
    assert (two.latest, one.latest) == ((2, 5), None)
    assert server.heard[0].patterns == ["a.*", "b"]


def test_where_a_page_is_lost_it_asks_again_and_passes_over_the_rest(ask: Any) -> None:
    def answer(asked: Any) -> list[Any]:
        second = (Logs(asked.number, "pub", [info("pub/b")], page=1), [])
        first = (Logs(asked.number, "pub", [info("pub/a")], more=True), [])
        return [second] if asked.number == 1 else [first, second]

    server, client = ask(answer)
    assert [log.stream for log in client.logs()] == ["pub/a", "pub/b"]
    assert len(server.heard) == 2


def test_where_pages_are_lost_every_time_it_says_so(ask: Any) -> None:
    _, client = ask(lambda asked: [(Logs(asked.number, "pub", page=1), [])])
    with pytest.raises(ReplayError, match="are missing"):
        client.logs()


def test_a_list_that_never_ends_is_given_up(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_client, "ROWS_MAX", 3)
    _, client = ask(
        lambda asked: [(Logs(asked.number, "pub", more=True, page=n), []) for n in range(10)]
    )
    with pytest.raises(ReplayError, match="more than 3 epochs"):
        client.logs()


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (lambda n: Logs(n, "pub", error="too many questions"), "too many questions"),
        (lambda n: Refused("this is mesh 'other'"), "this is mesh 'other'"),
        (lambda n: Unknown(), "does not serve logs"),
    ],
)
def test_a_refusal_is_passed_on(ask: Any, said: Any, problem: str) -> None:
    _, client = ask(lambda asked: [(said(asked.number), [])])
    with pytest.raises(ReplayError, match=problem):
        client.logs()


def test_what_answers_another_question_is_passed_over(ask: Any) -> None:
    def answer(asked: Any) -> list[Any]:
        n = asked.number
        strange = [Ping(1), Logs(n + 7, "pub", [info("pub/x")]), Part(n, 0, 0, done=True)]
        return [(one, []) for one in (*strange, Logs(n, "pub", [info("pub/a")]))]

    _, client = ask(answer)
    assert [log.stream for log in client.logs()] == ["pub/a"]


def test_nobody_answers_in_time(ask: Any) -> None:
    _, client = ask(nothing, timeout=0.05)
    with pytest.raises(ReplayError, match="no answer in"):
        client.logs()


def test_patterns_are_checked_before_they_are_sent(ask: Any) -> None:
    server, client = ask(nothing)
    with pytest.raises(TopicError):
        client.logs("a..b")
    assert server.heard == []


# Reading ---------------------------------------------------------------------------------------


def part(n: int, first: int, *frames: tuple[int, int], done: bool = True, **more: Any) -> Any:
    """A part with frames of these events."""
    data = [run_of(EPOCH, *frame).frame.data for frame in frames]
    lengths = [(len(one), stop) for one, (_, stop) in zip(data, frames, strict=True)]
    stop = more.pop("stop", frames[-1][1] if frames else first)
    return Part(n, first, stop, lengths, done=done, **more), data


def ranges(items: Any) -> list[tuple[int, int, str]]:
    """What came: events of frames, and losses by reason."""
    return [
        (item.first, item.stop, item.reason)
        if isinstance(item, Loss)
        else (item.frame.first + item.lo, item.frame.first + item.hi, "")
        for item in items
    ]


def test_a_range_is_cut_out_of_whole_frames(ask: Any) -> None:
    _, client = ask(lambda asked: [part(asked.number, 2, (0, 4), (4, 8), stop=6)])
    assert ranges(client.read(STREAM, EPOCH, 2, 6)) == [(2, 4, ""), (4, 6, "")]


def test_what_is_not_there_comes_as_losses_in_order(ask: Any) -> None:
    gone = [(0, 1, "expired"), (3, 5, "a word of tomorrow")]
    _, client = ask(
        lambda asked: [
            part(asked.number, 0, (1, 3), (5, 6), gone=[*gone, (6, 8, "overflow")], stop=8)
        ]
    )
    assert ranges(client.read(STREAM, EPOCH, 0, 8)) == [
        (0, 1, "expired"),
        (1, 3, ""),
        (3, 5, "gone"),
        (5, 6, ""),
        (6, 8, "overflow"),
    ]


def test_credit_is_given_for_what_was_taken(ask: Any) -> None:
    def answer(asked: Any) -> list[Any]:
        if isinstance(asked, Read):
            return [part(asked.number, 0, (0, 2), done=False)]
        return [part(asked.number, 2, (2, 4))]

    server, client = ask(answer, credit_bytes=100)
    items = client.read(STREAM, EPOCH, 0, 4)
    next(items)
    assert len(server.heard) == 1
    assert server.heard[0].credit == 100
    assert ranges(items) == [(2, 4, "")]
    assert [one.bytes > 0 for one in server.heard[1:]] == [True]


def test_a_read_that_is_given_up_is_told(ask: Any) -> None:
    server, client = ask(
        lambda asked: [part(asked.number, 0, (0, 2), done=False)] if isinstance(asked, Read) else []
    )
    items = client.read(STREAM, EPOCH, 0, 4)
    next(items)
    items.close()
    wait_until(lambda: [one.bytes for one in server.heard if isinstance(one, Credit)] == [0])


def test_nothing_is_asked_for_an_empty_range_and_none_for_what_is_none(ask: Any) -> None:
    server, client = ask(nothing)
    assert list(client.read(STREAM, EPOCH, 5, 5)) == []
    for first, stop in ((5, 4), (-1, 4)):
        with pytest.raises(ConfigError, match="is not a range"):
            list(client.read(STREAM, EPOCH, first, stop))
    assert server.heard == []


def damaged(n: int) -> Any:
    message, data = part(n, 0, (0, 4))
    return message, [bytes([data[0][0] ^ 255]) + data[0][1:]]


def foreign(n: int) -> Any:
    frame = run_of(EPOCH + 1, 0, 4).frame.data
    return Part(n, 0, 4, [(len(frame), 4)], done=True), [frame]


@pytest.mark.parametrize("answer", [damaged, foreign])
def test_a_frame_that_is_damaged_in_the_log_is_a_loss(ask: Any, answer: Any) -> None:
    _, client = ask(lambda asked: [answer(asked.number)])
    assert ranges(client.read(STREAM, EPOCH, 0, 4)) == [(0, 4, "corrupt")]


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: [part(n, 0, (0, 2))],  # the end of the range is not there
        lambda n: [part(n, 1, (1, 4))],  # nor its begin
        lambda n: [part(n, 0, (0, 2), stop=4)],
        lambda n: [part(n, 0, (0, 2), (0, 2), stop=4)],  # twice
        lambda n: [(part(n, 0, (0, 4))[0], [b"short"])],
        lambda n: [part(n, 0, (0, 4), error="the log was removed")],
        lambda n: [(Part(n, 0, 0, done=True, error="no log of this stream"), [])],
    ],
)
def test_less_than_was_asked_for_is_an_error(ask: Any, answer: Any) -> None:
    _, client = ask(lambda asked: answer(asked.number) if isinstance(asked, Read) else [])
    with pytest.raises(ReplayError):
        list(client.read(STREAM, EPOCH, 0, 4))


def test_a_frame_that_does_not_go_on_where_the_last_one_ended_is_a_loss(ask: Any) -> None:
    """Whether it is damaged, or what is before it was left out: it is not passed over."""
    _, client = ask(lambda asked: [part(asked.number, 0, (0, 2), (3, 4))])
    assert ranges(client.read(STREAM, EPOCH, 0, 4)) == [(0, 2, ""), (2, 4, "corrupt")]


def test_closed_it_asks_nothing(ask: Any) -> None:
    _, client = ask(nothing)
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        client.logs()
    with pytest.raises(ClosedError):
        list(client.read(STREAM, EPOCH, 0, 1))


def test_credit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="credit_bytes"):
        ReplayClient("tcp://127.0.0.1:1", credit_bytes=0)


# Keys ------------------------------------------------------------------------------------------


class Proving:
    """Two peers with keys of their own, and how `pub` answers the question of `desk`."""

    def __init__(self, folder: Path) -> None:
        grants = {name: new_folder(folder / name, name, KEY) for name in ("pub", "desk")}
        allow(folder / "desk", Grant("pub", grants["pub"].key, ("a.**",)))
        allow(folder / "pub", grants["desk"])
        self.security = Security(key_dir=str(folder / "desk"))
        self.keyring = Keyring(Security(key_dir=str(folder / "pub")))
        self.user = grants["desk"].key.hex().encode()
        self.peer = "pub"
        self.nonce: bytes | None = None

    def answer(self, asked: Any) -> list[Any]:
        if isinstance(asked, Read):
            return [part(asked.number, 0, (0, 4))]
        logs = [info(STREAM), info("pub/b", topics="b.**")]
        said = Logs(asked.number, self.peer, logs, key=self.keyring.curve.own.public)
        nonce = asked.nonce if self.nonce is None else self.nonce
        proof = self.keyring.prove(self.user, nonce, logs_transcript(said))
        return [(msgspec.structs.replace(said, proof=proof), [])]


@pytest.fixture
def proving(tmp_path: Path) -> Proving:
    return Proving(tmp_path)


def test_a_peer_is_heard_of_what_its_key_may_publish(ask: Any, proving: Proving) -> None:
    server, client = ask(proving.answer, proving.keyring, security=proving.security)
    assert ranges(client.read(STREAM, EPOCH, 0, 4)) == [(0, 4, "")]
    assert [log.stream for log in client.logs()] == [STREAM]
    with pytest.raises(ReplayError, match="that it may serve"):
        list(client.read("pub/b", EPOCH, 0, 4))
    assert len([one for one in server.heard if isinstance(one, Read)]) == 1
    nonces = [one.nonce for one in server.heard if isinstance(one, LogsPlease)]
    assert len(set(nonces)) == len(nonces) == 3


def test_an_answer_of_another_time_proves_nothing(ask: Any, proving: Proving) -> None:
    proving.nonce = b"o" * 16
    _, client = ask(proving.answer, proving.keyring, security=proving.security)
    with pytest.raises(ReplayError, match="did not prove its key"):
        client.logs()


def test_a_name_that_is_not_of_the_key_is_not_believed(ask: Any, proving: Proving) -> None:
    proving.peer = "desk"
    _, client = ask(proving.answer, proving.keyring, security=proving.security)
    with pytest.raises(ReplayError, match="does not name 'desk' with its public key"):
        client.logs()
