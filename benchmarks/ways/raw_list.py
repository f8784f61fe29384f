"""Raw pyzmq with the batching that people write by hand: 100 events as one msgpack list."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

import msgpack
import zmq

from benchmarks.meter import Meter
from benchmarks.task import READY, Report, Task, payloads, taken
from benchmarks.ways.raw import address_of, sockets, wait_for_subscribers

LIST_EVENTS = 100


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    with sockets(task.size_bytes * LIST_EVENTS, zmq.XPUB) as (out,):
        boss.send(address_of(out))
        boss.recv()
        wait_for_subscribers(out, task.subscribers)
        boss.send(READY)
        boss.recv()
        pool = payloads(task.size_bytes)
        send, pack = out.send, msgpack.Packer().pack
        with Meter(task) as meter:
            with meter.loop():
                for _ in range(task.count // len(pool)):
                    for at in range(0, len(pool), LIST_EVENTS):
                        send(pack(pool[at : at + LIST_EVENTS]))
            boss.recv()
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take everything."""
    with sockets(task.size_bytes * LIST_EVENTS, zmq.SUB) as (into,):
        boss.send("")
        into.connect(boss.recv()[0])
        boss.send(READY)
        recv, unpack = into.recv, msgpack.unpackb
        with Meter(task) as meter, meter.loop():
            octets = sum(map(len, unpack(recv())))
            began_ns = time.monotonic_ns()
            for _ in range(task.count // LIST_EVENTS - 1):
                octets += sum(map(len, unpack(recv())))
            ended_ns = time.monotonic_ns()
        report = taken(task.count, LIST_EVENTS, began_ns, ended_ns, octets, task)
        boss.send(meter.add_to(report))
        boss.recv()
