"""The monitor's server turn by turn, over real sockets: what a caller costs and is counted as."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from meshmsg import BindError
from meshmsg.monitor import http_server
from meshmsg.monitor.http_messages import HEAD_BYTES_MAX, Answer, Request
from meshmsg.monitor.http_server import HttpServer
from tests.support.waiting import wait_until

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


class Serving:
    """A server whose turns a test takes, and callers of it."""

    def __init__(self, stack: ExitStack) -> None:
        self.counters: Counter[str] = Counter()
        self.asked: list[Request] = []
        self.body = b"hello"
        self.follows = False
        self.server = HttpServer("127.0.0.1", 0, self._answer, self.counters)
        stack.callback(self.server.close)
        self.address = self.server.open()
        self._stack = stack

    def _answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return Answer(200, self.body, follows=self.follows)

    def call(self, data: bytes = b"") -> socket.socket:
        made = self._stack.enter_context(socket.create_connection(self.address))
        made.sendall(data)
        return made

    def turns_until(self, condition: Callable[[], object]) -> None:
        def turned() -> bool:
            self.server.wake()  # or a turn waits for what a test does only after it
            self.server.turn()
            return bool(condition())

        wait_until(turned, what=f"{condition} ({self.counters})")

    def read(self, caller: socket.socket) -> bytes:
        """The answer to its end, while the server takes its turns."""
        caller.setblocking(False)
        found: list[bytes] = []

        def ended() -> bool:
            try:
                found.append(caller.recv(65_536))
            except BlockingIOError:
                return False
            except ConnectionError:
                return True
            return not found[-1]

        self.turns_until(ended)
        return b"".join(found)


@pytest.fixture
def serving() -> Iterator[Serving]:
    with ExitStack() as stack:
        yield Serving(stack)


def test_a_request_is_answered_and_the_connection_ends(serving: Serving) -> None:
    found = serving.read(serving.call(GET))
    assert found.startswith(b"HTTP/1.1 200 OK\r\n")
    assert found.endswith(b"\r\n\r\nhello")
    assert [request.path for request in serving.asked] == ["/a"]
    assert serving.counters == Counter(connections=1, requests=1)


def test_a_head_has_no_body_and_its_length_all_the_same(serving: Serving) -> None:
    found = serving.read(serving.call(GET.replace(b"GET", b"HEAD")))
    assert b"Content-Length: 5\r\n" in found
    assert found.endswith(b"\r\n\r\n")


def test_a_request_may_come_in_pieces(serving: Serving) -> None:
    caller = serving.call(GET[:9])
    serving.turns_until(lambda: serving.counters["connections"])
    assert serving.asked == []
    caller.sendall(GET[9:])
    assert serving.read(caller).endswith(b"hello")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\xff\r\n\r\n", b"400"),
        (b"GET a HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES_MAX, b"431"),
    ],
)
def test_what_is_no_request_is_refused_and_counted(
    serving: Serving, data: bytes, status: bytes
) -> None:
    assert serving.read(serving.call(data)).split()[1] == status
    assert serving.asked == []
    assert serving.counters["bad_requests"] == 1


def test_a_large_answer_arrives_whole(serving: Serving) -> None:
    serving.body = bytes(range(256)) * 8_192
    assert serving.read(serving.call(GET)).endswith(serving.body)


def test_the_silent_make_room_for_those_who_ask(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 3)
    silent = [serving.call() for _ in range(3)]
    serving.turns_until(lambda: serving.counters["connections"] == 3)
    assert serving.read(serving.call(GET)).endswith(b"hello")
    assert serving.counters["connections_full"] == 1
    assert silent[0].recv(1) == b"", "the one that was silent for longest went"


def test_one_that_does_not_say_what_it_wants_is_ended_in_time(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.01)
    caller = serving.call(GET[:-1])
    assert serving.read(caller) == b""
    assert serving.counters["timeouts"] == 1
    assert serving.asked == []


def test_one_that_hangs_up_in_the_middle_is_counted(serving: Serving) -> None:
    serving.call(GET[:5]).close()
    serving.turns_until(lambda: serving.counters["hung_up"])
    assert serving.counters == Counter(connections=1, hung_up=1)


def test_more_at_once_than_may_be_are_accepted_later(serving: Serving) -> None:
    callers = [serving.call(GET) for _ in range(50)]
    serving.turns_until(lambda: serving.counters["requests"] == 50)
    assert serving.counters["accepts_delayed"] >= 1
    assert all(serving.read(caller).endswith(b"hello") for caller in callers)


def test_a_turn_ends_when_it_is_woken(serving: Serving) -> None:
    serving.server.wake()
    serving.server.turn()  # else it waits for a minute
    assert serving.counters == Counter()


def test_an_address_that_is_taken_is_named(serving: Serving) -> None:
    other = HttpServer(*serving.address, lambda _: Answer(200, b""), Counter())
    with pytest.raises(BindError, match=f"127.0.0.1:{serving.address[1]}"):
        other.open()
    other.close()


# --- those that follow ---


def watch(serving: Serving) -> socket.socket:
    serving.follows = True
    caller = serving.call(GET)
    before = serving.server.watchers()
    serving.turns_until(lambda: serving.server.watchers() > before)
    return caller


def test_what_follows_is_sent_to_all_that_watch(serving: Serving) -> None:
    callers = [watch(serving) for _ in range(3)]
    serving.follows = False
    other = serving.call(GET)
    serving.server.send_all(b"data: 1\n\n")
    serving.server.send_all(b"data: 2\n\n")
    assert serving.read(other).endswith(b"hello")
    for caller in callers:
        caller.settimeout(5)
        found = b""
        while not found.endswith(b"2\n\n"):
            found += caller.recv(4_096)
        assert b"Content-Length" not in found
        assert found.endswith(b"\r\n\r\nhellodata: 1\n\ndata: 2\n\n")
        caller.close()
    serving.turns_until(lambda: serving.server.watchers() == 0)


def test_watchers_are_bounded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WATCHERS_MAX", 2)
    first, second = watch(serving), watch(serving)
    assert b"503" in serving.read(serving.call(GET)).splitlines()[0]
    assert serving.counters["watchers_full"] == 1
    first.close()
    serving.turns_until(lambda: serving.server.watchers() == 1)
    watch(serving)
    second.close()


def test_a_slow_watcher_does_without_and_is_cut_off(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ANSWER_S", 0.2)
    watch(serving)
    piece = b"x" * 4_000_000

    def sent() -> bool:
        serving.server.send_all(piece)
        return serving.counters["slow_watchers"] == 1

    serving.turns_until(sent)
    assert serving.counters["snapshots_skipped"] > 0
    assert serving.server.watchers() == 0


def test_a_head_is_not_followed(serving: Serving) -> None:
    serving.follows = True
    assert serving.read(serving.call(GET.replace(b"GET", b"HEAD"))).endswith(b"\r\n\r\n")
    assert serving.server.watchers() == 0
