"""Attacks by one who dials: what a stranger, or the least of the listed, asks of a publisher."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import zmq

from meshmsg._model.message_fields import ATTEMPTS_MAX, PREFETCH_MAX
from meshmsg._wire import control as c
from tests.attack.hostile import Attacker, Dialler, EndlessMessage, encoded
from tests.attack.mutate import Maker, raw
from tests.attack.shape import DATA

LOG, VOL, BIG = "shop/log.**", "shop/vol.**", "shop/big.**"
WORK, JOBS = "shop/work.**", "shop/jobs.**"
MAX = (1 << 63) - 1
FAR = 1 << 62
MIB = 1 << 20
#: More than this is proof enough, and the machine is for others as well.
ENDLESS_BYTES = 700 * MIB
#: A connection is cut at the seventeenth; ZeroMQ dials again and says all of them again.
TOKENS = 40_000
KINDS = (
    "hello", "subscribe", "commit", "nack", "status", "join", "settle", "ping", "ask", "here",
    "bye", "logs?", "read", "credit", "answer",
)  # fmt: skip
#: Changed messages after which a dialler says again who it is.
GREET_AGAIN = 50


def staying(*diallers: Dialler) -> Iterator[None]:
    """Stay, with signs of life."""
    while True:
        yield
        for dialler in diallers:
            dialler.keep()
        time.sleep(0.02)


def subscribed(a: Attacker, dialler: Dialler, sub: int, stream: str, **fields: object) -> None:
    """Become a subscriber in all form: token and request."""
    data = a.data_socket()
    data.send(b"\1" + c.stream_wire_id("default", stream).to_bytes(8, "little"))
    data.send(b"\1" + c.subscription_token(sub))
    start = c.Start(stream, "earliest")
    dialler.say(c.Subscribe(sub, [stream.partition("/")[2]], [start], **fields))  # type: ignore[arg-type]
    dialler.hear(10.0)


def join(sub: int, group: str, stream: str, **changes: object) -> c.Join:
    fields: dict[str, object] = {"sub": sub, "group": group, "prefetch": 1, "ack_timeout_s": 30.0}
    fields |= {"patterns": [stream.partition("/")[2]], "starts": [c.Start(stream, "live")]}
    fields |= {"max_attempts": 5, "order": "none"}
    return c.Join(**(fields | changes))  # type: ignore[arg-type]


# --- anything at all ---


def mutate_dialler(a: Attacker) -> Iterator[None]:
    """Changed messages of all kinds to all honest peers, from one that says hello in between."""
    diallers = [a.dial(target) for target in a.targets]
    a.scene.subs = [5, 6, 7, 1 << 40]
    a.scene.addresses = [*a.targets.values(), "tcp://127.0.0.1:1", "ipc:///nowhere", "x"]
    for dialler in diallers:
        a.scene.instances.append(dialler.instance)
    a.scene.peer = diallers[0].name
    maker = Maker(a.rng, a.scene, KINDS)
    data = a.data_socket(SNDTIMEO=1000)
    for sub in a.scene.subs:
        data.send(b"\1" + c.subscription_token(sub))
    for turn in range(a.messages):
        if a.is_time_up():
            break
        dialler = diallers[turn % len(diallers)]
        if turn // len(diallers) % GREET_AGAIN == 0:
            dialler.say(dialler.hello())
        if turn % len(diallers) == 0:  # to make one takes longer than to send it
            message = maker.next()
        dialler.say(message)
        dialler.drain()
        if turn % 10 == 0:
            _noise(a, data)
    yield from staying(*diallers)


def _noise(a: Attacker, data: zmq.Socket[bytes]) -> None:
    """Something for the data port."""
    word = a.rng.choice((b"\1", b"\0", b"\2", b""))
    said = word + a.rng.randbytes(a.rng.choice((0, 8, 12, 100)))
    a.count(DATA, len(said))
    with contextlib.suppress(zmq.Again):
        data.send(said, zmq.NOBLOCK)


# --- memory ---


def multipart(a: Attacker) -> Iterator[None]:
    """A control message that never ends."""
    yield from _endless(a, "shop", a.targets["shop"], b"DEALER", MIB)


def multipart_data(a: Attacker) -> Iterator[None]:
    """A subscription that never ends."""
    yield from _endless(a, DATA, a.data, b"XSUB", 1000)


def _endless(a: Attacker, where: str, address: str, kind: bytes, size: int) -> Iterator[None]:
    parts = ENDLESS_BYTES // size
    if size < MIB:
        parts //= 2
    message = EndlessMessage(address, kind)
    part = bytes(size)
    try:
        while a.sent < parts and not a.is_time_up():
            a.count(where, size, paced=False)
            message.send(part)
        while True:
            yield
            time.sleep(0.05)
    except OSError:
        pass
    finally:
        message.close()


def multipart_listed(a: Attacker) -> Iterator[None]:
    """A message of many parts, encrypted, from one that has no right at all."""
    dialler = a.dial()
    part = bytes(MIB)
    for n in range(ENDLESS_BYTES // MIB // 2):
        a.count("shop", MIB, paced=False)
        dialler._socket.send(part, zmq.SNDMORE, copy=False)
        if n % 50 == 0:
            yield
    dialler._socket.send(b"")
    yield from staying()


def trie(a: Attacker) -> Iterator[None]:
    """Many long subscriptions, no two alike, at the data port."""
    data = a.data_socket(SNDHWM=100_000, SNDTIMEO=2000)
    for _ in range(20_000):
        a.count(DATA, 1001)
        try:
            data.send(b"\1" + a.rng.randbytes(1000))
        except zmq.Again:
            break
    yield from staying()


def cards(a: Attacker) -> Iterator[None]:
    """Cards that name a million streams."""
    diallers = [a.dial() for _ in range(12 if not a.is_listed else 1)]
    for number, dialler in enumerate(diallers):
        names = [f"{number:x}{n:06x}" for n in range(950_000)]
        dialler.say(
            raw(
                {
                    "t": "here",
                    "peer": dialler.name,
                    "instance": dialler.instance,
                    "serial": 1,
                    "streams": names,
                }
            )
        )
    yield from staying(*diallers)


def starts(a: Attacker) -> Iterator[None]:
    """Subscriptions that want to start in streams that there are not."""
    dialler = a.dial()
    for sub in range(12):
        places = [{"stream": f"{sub:x}/{n:x}", "kind": "live"} for n in range(290_000)]
        dialler.say(raw({"t": "subscribe", "sub": sub, "patterns": ["**"], "starts": places}))
    yield from staying(dialler)


def nacks(a: Attacker) -> Iterator[None]:
    """Requests for large frames, the answers to which are not read."""
    dialler = a.dial(unread=True)
    subscribed(a, dialler, 77, BIG)
    epoch = a.scene.streams[BIG]
    for number in range(3000):
        if not dialler.say(c.Nack(77, BIG, epoch, [(0, 40)], number)):
            break
    yield from staying()


def answer_any(a: Attacker) -> Iterator[None]:
    """An answer that nobody asked for, of eight million empty maps."""
    dialler = a.dial()
    for number in range(3):
        dialler.say(raw({"t": "answer", "number": number, "body": []})[:-1] + _maps(8_300_000))
    yield from staying(dialler)


def _maps(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + b"\x80" * count


# --- stalls ---


def names(a: Attacker) -> Iterator[None]:
    """A first message with eight million empty names."""
    dialler = a.dial(hello=False)
    empty = b"\xdd" + (8_300_000).to_bytes(4, "big") + b"\xa0" * 8_300_000
    hello = raw({"t": "hello", "peer": "m", "instance": 1, "mesh": "default", "listen": 0})
    for _ in range(4):
        dialler.say(hello[:-1] + empty)
    yield from staying()


def held(a: Attacker) -> Iterator[None]:
    """A member that says it has all the work in hand."""
    dialler = a.dial()
    for sub in range(900, 903):
        claim = c.Claimed(JOBS, a.scene.streams[JOBS], held=[(0, FAR, 2)])
        dialler.say(join(sub, "night", JOBS, claims=[claim], prefetch=PREFETCH_MAX))
    yield from staying(dialler)


def asks(a: Attacker) -> Iterator[None]:
    """Questions for statistics, one after the other."""
    dialler = a.dial()
    for number in range(10_000):
        dialler.say(c.Ask(number, "stats" if number % 2 else "ledger"))
        dialler.drain()
    yield from staying(dialler)


# --- false claims ---


def claims(a: Attacker) -> Iterator[None]:
    """A member that has done, it says, what it was never given."""
    dialler = a.dial()
    for sub, group, stream in ((901, "night", JOBS), (902, "crew", WORK)):
        claim = c.Claimed(stream, a.scene.streams[stream], acks=[(0, FAR, 1)])
        dialler.say(join(sub, group, stream, claims=[claim]))
    yield from staying(dialler)


def group_names(a: Attacker) -> Iterator[None]:
    """Members of groups whose names are as long as a name may be, from a place in a log on."""
    dialler = a.dial()
    for number, size in enumerate((100, 122, 123, 124, 127, 128)):
        for at, kind in enumerate(("live", "earliest", "last", "time", "resume", "origin")):
            place = c.Start(LOG, kind, 1, 0)  # type: ignore[arg-type]
            name = chr(ord("a") + at) * size
            dialler.say(join(950 + 10 * number + at, name, LOG, starts=[place]))
        dialler.hear(0.5)
    yield from staying(dialler)


def stale_acks(a: Attacker) -> Iterator[None]:
    """Acknowledgements of more than there can be, of one that is no member."""
    dialler = a.dial()
    said = c.Settlement(WORK, a.scene.streams[WORK], acks=[(0, MAX, 1)] * 3)
    dialler.say(c.Settle(1, [said]))
    dialler.say(join(3, "crew", WORK))
    dialler.say(c.Settle(3, [said], received={WORK: MAX}))
    yield from staying(dialler)


def liar_dialler(a: Attacker) -> Iterator[None]:
    """Each number that a subscriber or a member may say, said wrongly."""
    dialler = a.dial()
    for sub, stream in ((71, VOL), (72, LOG)):
        subscribed(a, dialler, sub, stream, name=f"liar{sub}", hold=True)
    for sub, stream in ((71, VOL), (72, LOG)):
        epoch = a.scene.streams[stream]
        for first, far in ((0, FAR), (FAR, 0), (MAX, MAX), (0, 0)):
            fields = (stream, epoch, first, far, far, far, first, {"deadline": far, "x": MAX})
            dialler.say(c.Status(sub, [c.Figures(*fields)] * 3))
            dialler.say(c.Nack(sub, stream, epoch, [(first, far)], 1))
            dialler.say(c.Nack(sub, stream, epoch + 1, [(far, first)], MAX))
            dialler.say(c.Commit(sub, [c.Place(stream, epoch, far), c.Place(stream, MAX, far)]))
            dialler.say(c.Read(sub, "default", stream, epoch, first, far, MAX))
            dialler.say(c.Credit(sub, MAX))
            dialler.drain()
    epoch = a.scene.streams[WORK]
    dialler.say(join(73, "crew", WORK))
    for acks in ([(0, FAR, 1)], [(FAR, 0, 1)], [(0, MAX, ATTEMPTS_MAX)]):
        nacks = [c.Refusal(0, 1, 1e9, "no"), c.Refusal(MAX, MAX)]
        dialler.say(c.Settle(73, [c.Settlement(WORK, epoch, acks, nacks, acks)], number=MAX))
        dialler.say(join(73, "crew", WORK, claims=[c.Claimed(WORK, epoch, acks, nacks, acks)]))
    dialler.say(c.Bye(dialler.instance, [c.Tail(VOL, a.scene.streams[VOL], 0, FAR)]))
    yield from staying(dialler)


# --- what all share ---


def slots(a: Attacker) -> Iterator[None]:
    """Subscriptions to nothing, as many as there may be of all."""
    dialler = a.dial()
    for sub in range(10_500):
        dialler.say(c.Subscribe(sub, ["vol.**"], []))
        if sub % 100 == 0:
            dialler.drain()
    yield from staying(dialler)


def tokens(a: Attacker) -> Iterator[None]:
    """Tokens of subscriptions that there are not, each time anew when the connection is cut."""
    data = a.data_socket(SNDHWM=200_000, SNDTIMEO=2000)
    for sub in range(TOKENS):
        a.count(DATA, 13)
        try:
            data.send(b"\1" + c.subscription_token(sub))
        except zmq.Again:
            break
        if a.is_time_up():
            break
    yield from staying()


def reads(a: Attacker) -> Iterator[None]:
    """Reads of a log that take a byte now and then."""
    dialler = a.dial()
    for number in range(300):
        dialler.say(c.Read(number, "default", LOG, a.scene.streams[LOG], 0, FAR, 1))
    for _ in staying(dialler):
        yield
        dialler.drain()


def holds(a: Attacker) -> Iterator[None]:
    """Subscriptions under a thousand names, each of which holds the log."""
    dialler, data = a.dial(), a.data_socket()
    for sub in range(1100):
        data.send(b"\1" + c.subscription_token(sub))
        start = c.Start(LOG, "earliest")
        dialler.say(c.Subscribe(sub, ["log.**"], [start], name=f"h{sub}", hold=True))
        dialler.drain()
    # Their answers come from a disk: all have been taken when the last one has.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and dialler.hear(2.0) is not None:
        dialler.keep()
    yield from staying(dialler)


def crowd(a: Attacker) -> Iterator[None]:
    """Many peers that say hello, and want to be dialled back where nobody is."""
    diallers = []
    for number in range(300):
        dialler = a.dial(hello=False)
        dialler.say(dialler.hello(streams=["x/y"], listen=[f"tcp://127.0.0.1:{number + 1}"]))
        diallers.append(dialler)
    yield from staying(*diallers)


# --- the log ---


def log_flood(a: Attacker) -> Iterator[None]:
    """Peers of another version and another mesh, thousands of them, and bad addresses."""
    dialler = a.dial()
    other = bytearray(encoded(c.Ping(1)))
    other[3] = 77
    stranger = a.dial(hello=False)
    for number in range(2000):
        dialler.say(bytes(other))
        stranger.say(stranger.hello(mesh=f"mesh{number}", instance=number + 5))
    known = [
        c.Contact(f"n{n}", n + 99, ["tcp://[::1%!0]:80", f"tcp://[::1%!{n}]:80"])
        for n in range(250)
    ]
    for serial in range(4):
        dialler.say(c.Here(dialler.name, dialler.instance, serial, known=known))
    yield from staying(dialler)


Run = Callable[[Attacker], Iterator[None]]
