"""The ways to hand jobs to workers that are measured: a publisher and a worker for each.

Both are functions of a pipe, an address and the number of jobs.  A publisher says where to connect
to, waits for `go`, hands out everything, and tells how many jobs were acknowledged, once they are.
A worker says `ready`, takes jobs until it is told to stop, and reports how many and when.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.space import Missing

PAYLOAD = b"x" * 64
TOPIC = "jobs.bench"
PREFETCH = 8192
RIVAL_PREFETCH = 1000
RUN = 1000
#: Jobs in one `publish_many`.
MANY = 10_000
Part = Callable[[Connection, str, int], None]


class Tally:
    """Counts jobs, and when the first and the last one came."""

    def __init__(self) -> None:
        self.jobs = 0
        self.began_ns = self.ended_ns = 0

    def add(self, count: int) -> None:
        now = time.monotonic_ns()
        if not self.jobs:
            self.began_ns = now
        self.jobs += count
        self.ended_ns = now

    def report(self) -> dict[str, int]:
        return {"jobs": self.jobs, "began_ns": self.began_ns, "ended_ns": self.ended_ns}


# Raw pyzmq -------------------------------------------------------------------------------------


def raw_publish(boss: Connection, where: str, count: int) -> None:
    import zmq

    context: Any = zmq.Context()
    out = context.socket(zmq.PUSH)
    out.setsockopt(zmq.SNDHWM, 10_000)
    port = out.bind_to_random_port("tcp://127.0.0.1")
    boss.send(f"tcp://127.0.0.1:{port}")
    boss.recv()
    time.sleep(0.2)  # both pipes, or the first worker gets everything at first
    send = out.send
    for _ in range(count):
        send(PAYLOAD)
    for _ in range(2):
        send(b"")
    boss.send(count)  # nobody acknowledges anything
    boss.recv()


def raw_work(boss: Connection, where: str, count: int) -> None:
    import zmq

    context: Any = zmq.Context()
    into = context.socket(zmq.PULL)
    into.setsockopt(zmq.RCVHWM, 10_000)
    into.connect(where)
    boss.send("ready")
    recv, tally, jobs = into.recv, Tally(), 0
    if recv():
        tally.add(1)
        while recv():
            jobs += 1
        tally.add(jobs)
    boss.recv()
    boss.send(tally.report())


# meshmsg ---------------------------------------------------------------------------------------


def meshmsg_publish(boss: Connection, where: str, count: int, *, batches: bool = False) -> None:
    from meshmsg import Peer, Stream

    with Peer("boss", streams=[Stream("jobs.**", overflow="block")]) as peer:
        boss.send(peer.address)
        boss.recv()
        peer.wait_for_subscribers(TOPIC, count=2, timeout=30)
        if batches:
            jobs = [PAYLOAD] * MANY
            for _ in range(count // MANY):
                peer.publish_many(TOPIC, jobs)
        else:
            publish = peer.publish
            for _ in range(count):
                publish(TOPIC, PAYLOAD)
        peer.flush(60)
        (group,) = peer.stats()["streams"]["jobs.**"]["groups"]
        boss.send(group["acked"])
        boss.recv()


def meshmsg_publish_batches(boss: Connection, where: str, count: int) -> None:
    meshmsg_publish(boss, where, count, batches=True)


def meshmsg_work(boss: Connection, where: str, count: int) -> None:
    from meshmsg import Peer

    with (
        Peer(f"worker-{time.monotonic_ns()}", connect=where) as peer,
        peer.subscribe("jobs.**", group="workers", prefetch=PREFETCH) as events,
    ):
        stop = _closer(boss, events)
        tally = Tally()
        ack, add = events.ack, tally.add
        for event in events:
            assert event.data
            ack(event)
            add(1)
        stop.join()
        boss.send(tally.report())


def meshmsg_work_batches(boss: Connection, where: str, count: int) -> None:
    from meshmsg import Peer

    with (
        Peer(f"worker-{time.monotonic_ns()}", connect=where) as peer,
        peer.subscribe("jobs.**", group="workers", prefetch=PREFETCH) as events,
    ):
        stop = _closer(boss, events)
        tally = Tally()
        for batch in events.batches():
            tally.add(len(batch.payloads))
            events.ack(batch)
        stop.join()
        boss.send(tally.report())


def _closer(boss: Connection, events: Any) -> threading.Thread:
    """Ready; and closes the subscription when told to stop."""
    boss.send("ready")

    def wait() -> None:
        boss.recv()
        events.close()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


# RabbitMQ --------------------------------------------------------------------------------------


def rabbit_channel(where: str) -> Any:
    try:
        import pika
    except ImportError:
        raise Missing("pika is not installed (pip install 'meshmsg[bench]')") from None
    host, _, port = where.partition(":")
    deadline = time.monotonic() + 30
    while True:
        try:
            return pika.BlockingConnection(pika.ConnectionParameters(host, int(port))).channel()
        except pika.exceptions.AMQPError:
            if time.monotonic() > deadline:
                raise Missing("RabbitMQ does not take connections") from None
            time.sleep(0.2)


def rabbit_publish(boss: Connection, where: str, count: int) -> None:
    channel = rabbit_channel(where)
    channel.queue_declare(TOPIC)
    boss.send(where)
    boss.recv()
    for _ in range(count):
        channel.basic_publish("", TOPIC, PAYLOAD)
    while channel.queue_declare(TOPIC, passive=True).method.message_count:
        time.sleep(0.01)
    boss.send(count)
    boss.recv()


def rabbit_work(boss: Connection, where: str, count: int, *, every: int = 1) -> None:
    channel = rabbit_channel(where)
    channel.basic_qos(prefetch_count=RIVAL_PREFETCH)
    tally = Tally()

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        tally.add(1)
        if tally.jobs % every == 0:
            channel.basic_ack(method.delivery_tag, multiple=every > 1)

    channel.basic_consume(TOPIC, take)
    boss.send("ready")
    before = -1
    while not boss.poll() or tally.jobs > before:  # what is on its way when all are told to stop
        before = tally.jobs
        channel.connection.process_data_events(time_limit=0.5)
    boss.recv()
    boss.send(tally.report())


def rabbit_work_batches(boss: Connection, where: str, count: int) -> None:
    rabbit_work(boss, where, count, every=100)


# NATS JetStream --------------------------------------------------------------------------------


def nats_module() -> Any:
    try:
        import nats
    except ImportError:
        raise Missing("nats-py is not installed (pip install 'meshmsg[bench]')") from None
    return nats


def nats_publish(boss: Connection, where: str, count: int) -> None:
    nats = nats_module()

    async def publish() -> None:
        from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType

        connection = await nats.connect(f"nats://{where}")
        stream = connection.jetstream()
        await stream.add_stream(
            name="bench",
            subjects=["jobs.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.MEMORY,
        )
        config = ConsumerConfig(
            durable_name="workers", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=20_000
        )
        await stream.add_consumer("bench", config)
        boss.send(where)
        await asyncio.to_thread(boss.recv)
        for start in range(0, count, RUN):
            jobs = range(start, min(count, start + RUN))
            # Each waits for the server's receipt; many at a time, as its users do for speed.
            await asyncio.gather(*(stream.publish(TOPIC, PAYLOAD) for _ in jobs))
        while (await stream.stream_info("bench")).state.messages:
            await asyncio.sleep(0.01)
        boss.send(count)
        await asyncio.to_thread(boss.recv)

    asyncio.run(publish())


def nats_work(boss: Connection, where: str, count: int) -> None:
    nats = nats_module()

    async def work() -> None:
        connection = await nats.connect(f"nats://{where}")
        jobs = await connection.jetstream().pull_subscribe_bind("workers", "bench")
        tally = Tally()
        boss.send("ready")
        while not boss.poll():
            try:
                found = await jobs.fetch(RIVAL_PREFETCH, timeout=0.5)
            except (TimeoutError, nats.errors.TimeoutError):
                continue
            for message in found:
                assert message.data
                await message.ack()
            tally.add(len(found))
        await connection.flush()
        boss.recv()
        boss.send(tally.report())

    asyncio.run(work())


# All of them -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """One way to share work."""

    name: str
    label: str
    count: int
    """Jobs of a full run, for a few seconds."""
    publish: Part
    work: Part


WAYS = (
    Way("raw", "raw pyzmq PUSH/PULL, no acks", 1_000_000, raw_publish, raw_work),
    Way("meshmsg", "meshmsg, group: ack an event", 1_000_000, meshmsg_publish, meshmsg_work),
    Way(
        "meshmsg-batches",
        "meshmsg, group: ack a batch",
        4_000_000,
        meshmsg_publish_batches,
        meshmsg_work_batches,
    ),
    Way("rabbitmq", "RabbitMQ (pika), ack an event", 20_000, rabbit_publish, rabbit_work),
    Way(
        "rabbitmq-batches",
        "RabbitMQ (pika), ack 100 at once",
        20_000,
        rabbit_publish,
        rabbit_work_batches,
    ),
    Way("nats", "NATS JetStream (nats-py), ack an event", 20_000, nats_publish, nats_work),
)
