"""Attacks by one who is dialled: what a hostile publisher or recorder answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from meshmsg._model.message_fields import ENTRIES_MAX
from meshmsg._model.multicast_config import split_group
from meshmsg._wire import control as c
from meshmsg._wire import packet
from meshmsg._wire.frame import Heartbeat, encode_frame
from meshmsg._wire.multicast_info import MulticastInfo
from tests.attack.by_diallers import FAR, JOBS, MAX, WORK, _maps
from tests.attack.hostile import NAME, Attacker, Dialled, Said
from tests.attack.mutate import Maker, raw
from tests.attack.shape import GROUP

SUBSCRIBERS = ("reader", "recorder", "crew")
READ = ("shop/vol.**", "shop/log.**", "shop/mc.**")
TOPICS = ("vol.**", "log.**", "mc.**")
MC = "shop/mc.**"
KINDS = (
    "welcome", "refused", "subscribed", "rekey", "repair", "gone", "evicted", "status?", "joined",
    "unjoined", "kept", "pong", "unknown", "answer", "here", "bye", "logs", "part", "ask",
)  # fmt: skip
#: Changed answers after which the attacker comes back as somebody else.
COME_BACK = 1500


def info(
    name: str, topics: str, epoch: int, multicast: MulticastInfo | None = None
) -> c.StreamInfo:
    return c.StreamInfo(name, topics, epoch, "buffer", "msgpack", 1 << 20, multicast)


def multicast(group: str, receive_buffer_bytes: int = 1 << 20) -> MulticastInfo:
    return MulticastInfo(
        group=group,
        request_port=29_900,
        sources=[("127.0.0.1", 29_901)],
        packet_bytes=1472,
        nack_delay_s=0.001,
        nack_backoff_s=0.001,
        nack_retry_s=0.1,
        nack_deadline_s=5.0,
        status_interval_s=0.1,
        receiver_timeout_s=5.0,
        receive_buffer_bytes=receive_buffer_bytes,
    )


def known(a: Attacker, names: Iterable[str] = READ) -> list[c.StreamInfo]:
    """The shop's streams, as a recorder would tell of them."""
    return [info(name, name.partition("/")[2], a.scene.streams[name]) for name in names]


def own(topics: Iterable[str] = TOPICS) -> list[c.StreamInfo]:
    """Streams of the attacker's, which subscribers of the shop's take as well."""
    return [info(f"{NAME}/own{n}", text, 5) for n, text in enumerate(topics)]


def placed(dialled: Dialled, peers: int = 2) -> None:
    """Wait until honest peers have dialled and subscribed."""
    dialled.serve(10.0, lambda: len(dialled.names) >= peers)
    dialled.serve(2.0, lambda: len(dialled.subs) >= peers)


def serving(dialled: Dialled) -> Iterator[None]:
    while True:
        yield
        dialled.serve(0.05)


# --- anything at all ---


def mutate_dialled(a: Attacker) -> Iterator[None]:
    """Changed answers of all kinds, from one that comes back as somebody else now and then."""
    left = a.messages
    targets = [name for name in a.targets if name != "late"]
    while left > 0 and not a.is_time_up():
        dialled = Dialled(a, targets, streams=own(), recorded=known(a))
        placed(dialled)
        a.scene.peer = dialled.name
        a.scene.instances = [dialled.instance]
        a.scene.addresses = [dialled.address, dialled.data, "tcp://127.0.0.1:1", "x"]
        maker = Maker(a.rng, a.scene, KINDS)
        for turn in range(min(left, COME_BACK)):
            whos = list(dialled.names)
            if not whos or a.is_time_up():
                break
            who = whos[turn % len(whos)]
            if who == whos[0]:  # to make one takes longer than to send it
                a.scene.subs = dialled.subs.get(a.rng.choice(whos), [])
                frame = _frame(a) if a.rng.random() < 0.1 else None
                message = maker.next()
            dialled.say(who, message, frame)
            if turn % 20 == 0:
                dialled.serve(0.001)
        left -= COME_BACK
        dialled.close()
    yield


def _frame(a: Attacker) -> bytes:
    """A frame of the shop's that is spoilt, or one of the attacker's own."""
    own0 = f"{a.scene.peer}/own0"
    name = a.rng.choice((own0, *READ))
    wire_id = c.stream_wire_id("default", name)
    first = a.rng.choice((0, 1, 100, FAR, MAX - 10))
    epoch = a.scene.streams.get(name, 5)
    data = bytearray(encode_frame(wire_id, epoch, first, "vol.x", [b"\x92\x01\x02"] * 3, 1))
    if name != own0:
        data[a.rng.randrange(8, len(data))] ^= 1 + a.rng.randrange(255)
    return bytes(data)


def mutate_frames(a: Attacker) -> Iterator[None]:
    """Frames and heartbeats of a hostile publisher, changed in any byte."""
    dialled = Dialled(a, ("reader", "recorder"), streams=own())
    dialled.answers = lambda who, said: _admissions(said)
    placed(dialled)
    dialled.serve(1.0)
    ids = [c.stream_wire_id("default", one.name) for one in dialled.streams]
    dialled.prefixes()
    first = 0
    for turn in range(a.messages):
        if a.is_time_up():
            break
        wire_id = a.rng.choice(ids)
        if a.rng.random() < 0.2:
            data = bytearray(
                Heartbeat(wire_id, 5, 0, a.rng.choice((first, first + 9, FAR))).encode()
            )
        else:
            payloads = [a.rng.randbytes(a.rng.randrange(40)) for _ in range(3)]
            data = bytearray(encode_frame(wire_id, 5, first, "vol.x", payloads, 1))
            first += 3
        for _ in range(a.rng.choice((0, 1, 1, 3))):
            data[a.rng.randrange(8, len(data))] = a.rng.randrange(256)
        dialled.frames(bytes(data))
        if turn % 20 == 0:
            dialled.serve(0.001)
    yield from serving(dialled)


def _admissions(said: c.Message) -> list[Said]:
    if not isinstance(said, c.Subscribe):
        return []
    return [c.Subscribed(said.sub, s.stream, 5, 0, 0, 0, 0) for s in said.starts]


def mutate_packets(a: Attacker) -> Iterator[None]:
    """Multicast packets of a stranger, to the group and to where repairs are asked for."""
    place = multicast_place(a)
    if place is None:
        yield
        return
    group, port, request_port, _ = place
    wire_id, epoch = c.stream_wire_id("default", MC), a.scene.streams[MC]
    sender = multicast_sender()
    for _ in range(a.messages):
        if a.is_time_up():
            break
        number = a.rng.choice((0, 1, 50, 1000, 1 << 21, 1 << 40))
        kind = a.rng.randrange(5)
        if kind == 0:
            data = packet.PacketBeat(wire_id, epoch, number, 0, 0, number, 9, 0).encode()
        elif kind == 1:
            data = packet.PacketRequest(
                packet.NACK, wire_id, epoch, 7, [(number, number + 9)]
            ).encode()
        elif kind == 2:
            data = packet.PacketStatus(
                wire_id, epoch, number, a.rng.getrandbits(32), 1 << 20
            ).encode()
        elif kind == 3:
            data = packet.PacketParity(wire_id, epoch, number, 0, 4, 2, bytes(900)).encode()
        else:
            data = b"MMP1" + a.rng.randbytes(a.rng.randrange(200))
        spoilt = bytearray(data)
        if a.rng.random() < 0.5:
            spoilt[a.rng.randrange(len(spoilt))] = a.rng.randrange(256)
        a.count(GROUP, len(spoilt))
        sender.sendto(bytes(spoilt), (group, port if a.rng.random() < 0.5 else request_port))
    sender.close()
    yield


# --- one message that ends something ---


def welcome_buffer(a: Attacker) -> Iterator[None]:
    """A multicast stream whose receivers are to have a buffer of 2 GiB."""
    for size in (1 << 31, (1 << 31) - 1):
        streams = [
            info(f"{NAME}/own{n}", text, 5, multicast(f"239.255.78.{n + 1}:29801", size))
            for n, text in enumerate(TOPICS)
        ]
        dialled = Dialled(a, SUBSCRIBERS, streams=streams)
        dialled.answers = lambda who, said: _admissions(said)
        placed(dialled)
        dialled.serve(1.0)
        if size == 1 << 31:
            for _ in range(20):
                yield
                dialled.serve(0.05)
            dialled.close()
    yield from serving(dialled)


def multicast_groups(a: Attacker) -> Iterator[None]:
    """A publisher with a thousand multicast groups."""
    streams = [
        info(f"{NAME}/own{n}", "vol.**", 5, multicast(f"239.{200 + n // 250}.78.{n % 250}:29801"))
        for n in range(1000)
    ]
    dialled = Dialled(a, SUBSCRIBERS, streams=streams)
    dialled.answers = lambda who, said: _admissions(said)
    placed(dialled)
    dialled.serve(2.0)
    yield from serving(dialled)


def covers(a: Attacker) -> Iterator[None]:
    """Streams whose topics take long to compare with what their publisher may publish."""
    levels = ".**.".join(f"n{n}" for n in range(30))
    streams = [info(f"{NAME}/own{n}", f"vol.**.{levels}.**.a{n}" + ".*" * 20, 5) for n in range(40)]
    dialled = Dialled(a, SUBSCRIBERS, streams=streams)
    placed(dialled)
    dialled.serve(2.0)
    yield from serving(dialled)


def answer_maps(a: Attacker) -> Iterator[None]:
    """An answer of eight million empty maps to one that dialled."""
    dialled = Dialled(a, SUBSCRIBERS, streams=own())
    placed(dialled)
    said = raw({"t": "answer", "number": 1, "body": []})[:-1] + _maps(8_300_000)
    for who in list(dialled.names):
        dialled.say(who, said)
    dialled.serve(3.0)
    yield from serving(dialled)


def welcome_names(a: Attacker) -> Iterator[None]:
    """A welcome of too many streams, and then of as many as there may be, again and again."""
    dialled = Dialled(a, SUBSCRIBERS, streams=own())
    placed(dialled)
    for turn, count in enumerate((60_000, *[10_000] * 10)):
        streams = [info(f"{dialled.name}/s{turn}-{n}", f"vol.s{n}", 5) for n in range(count)]
        some = ENTRIES_MAX if turn else count
        for page, at in enumerate(range(0, count, some)):
            dialled.streams = streams[at : at + some]
            for who, name in list(dialled.names.items()):
                welcome = dialled.welcome(c.Hello(name, 1, "default"))
                dialled.say(who, replace(welcome, page=page, more=at + some < count))
        dialled.serve(0.3)
    dialled.serve(3.0)
    yield from serving(dialled)


# --- liars ---


def false_tail(a: Attacker) -> Iterator[None]:
    """A recorder that has, it says, 2**62 events of the shop's streams."""
    dialled = Dialled(a, SUBSCRIBERS, streams=[], recorded=known(a))
    tails = [c.Tail(name, a.scene.streams[name], 0, FAR) for name in READ]
    dialled.pong = lambda n: c.Pong(n, dialled.instance, [], tails)
    placed(dialled)
    yield from serving(dialled)


def false_tail_of_its_own(a: Attacker) -> Iterator[None]:
    """The same, said as if the streams were its own."""
    dialled = Dialled(a, SUBSCRIBERS, streams=own())
    tails = [c.Tail(name, a.scene.streams[name], 0, FAR) for name in READ]
    dialled.pong = lambda n: c.Pong(n, dialled.instance, tails)
    placed(dialled)
    yield from serving(dialled)


def claimed_streams(a: Attacker) -> Iterator[None]:
    """The shop's streams, named in a welcome as if they were the liar's own."""
    dialled = Dialled(a, SUBSCRIBERS, streams=[*own(), *known(a, (*READ, WORK))])
    dialled.answers = lambda who, said: _admissions(said)
    tails = [c.Tail(one.name, one.epoch, 0, FAR) for one in dialled.streams]
    dialled.pong = lambda n: c.Pong(n, dialled.instance, tails)
    placed(dialled)
    yield from serving(dialled)


def future_epoch(a: Attacker) -> Iterator[None]:
    """A recorder that knows, it says, an epoch of the future."""
    dialled = Dialled(a, SUBSCRIBERS, streams=own(), recorded=known(a))
    dialled.answers = lambda who, said: _admissions(said)
    placed(dialled)
    for turn, _ in enumerate(serving(dialled)):
        if turn % 20 == 0:
            for name in READ:
                later = c.Subscribed(
                    0, name, a.scene.streams[name] + 10**6, 0, 0, 5, 0, recorded=True
                )
                dialled.say_all(later)
        yield


def inverted_gone(a: Attacker) -> Iterator[None]:
    """A recorder that does not have a range which runs backward, of events that it tells of."""
    dialled = Dialled(a, SUBSCRIBERS, streams=own(), recorded=known(a))
    dialled.answers = lambda who, said: _admissions(said)
    tails = [c.Tail(name, a.scene.streams[name], 0, 100_000) for name in READ]
    dialled.pong = lambda n: c.Pong(n, dialled.instance, [], tails)
    placed(dialled)
    for turn, _ in enumerate(serving(dialled)):
        if turn % 4 == 0:
            for name in READ:
                gone = c.Gone(0, name, a.scene.streams[name], [(60_000, 55_000)], "gone", 0)
                dialled.say_all(gone)
        yield


def liar_dialled(a: Attacker) -> Iterator[None]:
    """Each number that a publisher or a recorder may say, said wrongly of the shop's streams."""
    dialled = Dialled(a, SUBSCRIBERS, streams=own((*TOPICS, "work.**")), recorded=known(a))
    dialled.answers = lambda who, said: _admissions(said)
    placed(dialled)
    tails = [c.Tail(name, a.scene.streams[name], 0, FAR) for name in (*READ, WORK, JOBS)]
    ended = [c.Tail(name, epoch + 1, 0, FAR) for name, epoch in a.scene.streams.items()]
    dialled.pong = lambda n: c.Pong(n, dialled.instance, tails, tails + ended)
    for name in (*READ, WORK):
        epoch = a.scene.streams[name]
        for said in _lies(dialled.instance, name, epoch, tails):
            dialled.say_all(said)
        dialled.serve(0.1)
    for who in list(dialled.names):
        dialled.say(who, c.Bye(dialled.instance, tails))
        dialled.say(who, c.Pong(1, dialled.instance, tails, tails))
    yield from serving(dialled)


def _lies(instance: int, name: str, epoch: int, tails: list[c.Tail]) -> list[c.Message]:
    found: list[c.Message] = []
    for at in (0, epoch, epoch + 1, MAX):
        for over in (False, True):
            found.append(c.Subscribed(0, name, at, 0, 0, FAR, 0, over=over, recorded=True))
            found.append(c.Subscribed(0, name, at, 0, FAR, FAR, FAR, over=over))
        found.append(c.Gone(0, name, at, [(0, FAR)], "gone", MAX))
        found.append(c.Gone(0, name, at, [(0, 3), (MAX - 1, MAX)], "retention", 0))
    found.append(c.Evicted(0, name, "so I say"))
    found.append(c.Kept(0, name, MAX))
    found.append(c.Rekey(0, name, [(MAX, bytes(32))]))
    found.append(c.Joined(0, tails, [("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")]))
    found.append(c.StatusPlease(0, MAX))
    found.append(c.Pong(1, instance, tails, tails))
    return found


def log_lines(a: Attacker) -> Iterator[None]:
    """Refusals whose text makes lines of its own, thousands of them."""
    dialled = Dialled(a, SUBSCRIBERS, streams=own())
    placed(dialled)
    for number in range(2000):
        for who in list(dialled.names):
            text = f"no {number}\nCRITICAL meshmsg.peer: all is lost\x1b[2J"
            dialled.say(who, raw({"t": "refused", "reason": text}))
            dialled.say(who, c.Evicted(0, "shop/vol.**", text))
            dialled.say(who, c.Unknown())
        if number % 20 == 0:
            dialled.serve(0.001)
    yield from serving(dialled)


# --- multicast ---


def multicast_sender() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
    return made


def multicast_place(a: Attacker) -> tuple[str, int, int, int] | None:
    """Group, port, port for requests and the sender's port of the shop's multicast stream."""
    welcome = a.dial("shop").welcome
    for one in [] if welcome is None else welcome.streams:
        if one.name == MC and one.multicast is not None:
            group, port = split_group("group", one.multicast.group)
            return group, port, one.multicast.request_port, one.multicast.sources[0][1]
    a.blocked = "it is not told of the multicast stream"
    return None


def multicast_beats(a: Attacker) -> Iterator[None]:
    """Heartbeats from the sender's own address, of numbers that there are not."""
    place = multicast_place(a)
    if place is None:
        yield
        return
    group, port, _, source_port = place
    hears = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    hears.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    hears.bind((group, port))
    member = socket.inet_aton(group) + socket.inet_aton("127.0.0.1")
    hears.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
    hears.settimeout(10)
    while True:
        data = hears.recv(65_536)
        if data[4] in (packet.DATA, packet.HEARTBEAT):
            number = packet.HEAD.unpack_from(data)[6]
            break
    hears.close()
    sender = multicast_sender()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sender.bind(("127.0.0.1", source_port))
    except OSError as error:
        a.blocked = f"the sender's port is its own: {error.strerror}"
        sender.close()
        yield
        return
    wire_id, epoch = c.stream_wire_id("default", MC), a.scene.streams[MC]
    far = number + 100_000
    beat = packet.PacketBeat(wire_id, epoch, far, far, 0, FAR - 1, 9, 0)
    for _ in range(3):
        a.count(GROUP, len(beat.encode()))
        sender.sendto(beat.encode(), (group, port))
        time.sleep(0.2)
    sender.close()
    while True:
        yield
        time.sleep(0.05)
