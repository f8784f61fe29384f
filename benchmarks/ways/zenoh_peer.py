"""Zenoh by its Python binding: two peers over tcp, reliable, a full queue makes the sender wait."""

from __future__ import annotations

import json
import time
from multiprocessing.connection import Connection
from typing import Any

import zenoh

from benchmarks.meter import Meter
from benchmarks.task import READY, Report, Task, latencies, payloads, taken

#: Samples between the network and the program: the larger, the fewer turns of the two.
CHANNEL_SAMPLES = 4096
KEY = "bench/events"
BACK = "bench/back"
WAIT_S = 30.0


def open_session(*, listen: str = "", connect: str = "") -> Any:
    """A peer that meets only whom it is told to."""
    config = zenoh.Config()
    for name, value in (
        ("mode", "peer"),
        ("scouting/multicast/enabled", False),
        ("scouting/gossip/enabled", False),
        ("listen/endpoints", [listen] if listen else []),
        ("connect/endpoints", [connect] if connect else []),
    ):
        config.insert_json5(name, json.dumps(value))
    return zenoh.open(config)


def _publisher(session: Any, key: str, *, express: bool = False) -> Any:
    return session.declare_publisher(
        key,
        congestion_control=zenoh.CongestionControl.BLOCK,
        reliability=zenoh.Reliability.RELIABLE,
        express=express,
    )


def samples_of(session: Any, key: str) -> Any:
    return session.declare_subscriber(key, zenoh.handlers.FifoChannel(CHANNEL_SAMPLES))


def wait_for_match(publisher: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not publisher.matching_status.matching:
        if time.monotonic() > deadline:
            raise TimeoutError("no subscriber")
        time.sleep(0.01)


def _endpoint(task: Task) -> str:
    return f"tcp/127.0.0.1:{task.port}"


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    with open_session(listen=_endpoint(task)) as session:
        publisher = _publisher(session, KEY)
        boss.send(_endpoint(task))
        boss.recv()
        wait_for_match(publisher)
        time.sleep(0.5)  # there is no telling how many have matched
        boss.send(READY)
        boss.recv()
        pool, put = payloads(task.size_bytes), publisher.put
        with Meter(task) as meter:
            with meter.loop():
                for _ in range(task.count // len(pool)):
                    for payload in pool:
                        put(payload)
            boss.recv()
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take everything."""
    boss.send("")
    with open_session(connect=boss.recv()[0]) as session:
        subscriber = samples_of(session, KEY)
        boss.send(READY)
        recv = subscriber.recv
        with Meter(task) as meter, meter.loop():
            octets = len(recv().payload.to_bytes())
            began_ns = time.monotonic_ns()
            for _ in range(task.count - 1):
                octets += len(recv().payload.to_bytes())
            ended_ns = time.monotonic_ns()
        boss.send(meter.add_to(taken(task.count, 1, began_ns, ended_ns, octets, task)))
        boss.recv()


def ping(task: Task, boss: Connection) -> None:
    """Put one sample, wait for it to come back, and so on."""
    with open_session(listen=_endpoint(task)) as session:
        publisher, answers = _publisher(session, KEY, express=True), samples_of(session, BACK)
        boss.send(_endpoint(task))
        boss.recv()
        wait_for_match(publisher)
        boss.send(READY)
        boss.recv()
        payload = payloads(task.size_bytes)[1]
        trips_ns = []
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                began_ns = time.perf_counter_ns()
                publisher.put(payload)
                answers.recv().payload.to_bytes()
                trips_ns.append(time.perf_counter_ns() - began_ns)
        boss.recv()
        boss.send(meter.add_to(latencies(trips_ns, task)))
        boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Put back what comes."""
    boss.send("")
    with open_session(connect=boss.recv()[0]) as session:
        publisher, samples = _publisher(session, BACK, express=True), samples_of(session, KEY)
        wait_for_match(publisher)
        boss.send(READY)
        with Meter(task) as meter, meter.loop():
            for _ in range(task.count):
                publisher.put(samples.recv().payload.to_bytes())
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()
