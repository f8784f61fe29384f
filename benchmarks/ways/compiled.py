"""The limits of this machine: `limits.c`, compiled when it is needed; Python only opens sockets."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.meter import Meter
from benchmarks.space import GROUP, Missing
from benchmarks.task import READY, Report, Task, latencies, payloads, taken
from benchmarks.way import C_TCP
from benchmarks.ways.datagrams import END, line_in, line_out, say_end
from benchmarks.ways.gso import UDP_GRO
from benchmarks.ways.tcp import accepted, connected, listening

SOURCE = Path(__file__).with_name("limits.c")


class Taken(ctypes.Structure):
    """What a receiver in C found."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("events", "first", "octets", "began_ns", "ended_ns", "sum")
    ]


def library() -> ctypes.CDLL:
    """The compiled program; raises `Missing` where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Missing("there is no C compiler (gcc or cc)")
    with tempfile.TemporaryDirectory(prefix="bench-limits-") as folder:
        made = Path(folder, "limits.so")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"limits.c does not compile: {done.stderr[-300:]}")
        return ctypes.CDLL(str(made))


def _long(value: int) -> ctypes.c_int64:
    return ctypes.c_int64(value)


def _done(status: int) -> None:
    if status:
        raise OSError("a call in limits.c failed")


def publish(task: Task, boss: Connection) -> None:
    """Send everything to everyone."""
    code = library()
    pool = payloads(task.size_bytes)
    joined, kept, count = b"".join(pool), _long(len(pool)), _long(task.count)
    size = _long(task.size_bytes)
    with ExitStack() as stack:
        if task.way == C_TCP:
            door, address = stack.enter_context(listening())
            boss.send(address)
            boss.recv()
            lines = [stack.enter_context(accepted(door)) for _ in range(task.subscribers)]
            fds = (ctypes.c_int * len(lines))(*(line.fileno() for line in lines))
        else:
            boss.send("")
            boss.recv()
            out = stack.enter_context(line_out())
            out.connect((GROUP, task.port))
        boss.send(READY)
        boss.recv()
        with Meter(task) as meter:
            if task.way == C_TCP:
                _done(code.tcp_send(fds, len(lines), joined, kept, count, size))
                boss.recv()
            else:
                _done(code.udp_send(out.fileno(), joined, kept, count, size))
                say_end(lambda: out.send(END), boss)
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()


def receive(task: Task, boss: Connection) -> None:
    """Take everything, or what comes."""
    code, found = library(), Taken()
    boss.send("")
    address = boss.recv()[0]
    if task.way == C_TCP:
        with connected(address) as line:
            boss.send(READY)
            with Meter(task) as meter:
                _done(code.tcp_receive(line.fileno(), _long(task.count), ctypes.byref(found)))
        report = taken(
            found.events, found.first, found.began_ns, found.ended_ns, found.octets, task
        )
    else:
        with line_in(task.port) as into:
            into.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
            boss.send(READY)
            with Meter(task) as meter:
                size = _long(task.size_bytes)
                _done(code.udp_receive(into.fileno(), size, ctypes.byref(found)))
        report = Report(found.events, found.first, found.began_ns, found.ended_ns)
        report.lost = task.count - found.events
    boss.send(meter.add_to(report))
    boss.recv()


def _lines(task: Task, stack: ExitStack, boss: Connection, *, first: bool) -> tuple[int, int]:
    """What to send with and what to receive with."""
    if task.way == C_TCP:
        if first:
            door, address = stack.enter_context(listening())
            boss.send(address)
            boss.recv()
            line: Any = stack.enter_context(accepted(door))
        else:
            boss.send("")
            line = stack.enter_context(connected(boss.recv()[0]))
        return line.fileno(), line.fileno()
    boss.send("")
    boss.recv()
    there, back = (0, 2) if first else (2, 0)
    out = stack.enter_context(line_out())
    out.connect((GROUP, task.port + there))
    return out.fileno(), stack.enter_context(line_in(task.port + back)).fileno()


def ping(task: Task, boss: Connection) -> None:
    """Send one event, wait for it to come back, and so on."""
    code = library()
    trips_ns = (ctypes.c_int64 * task.count)()
    payload = payloads(task.size_bytes)[1]
    with ExitStack() as stack:
        out, into = _lines(task, stack, boss, first=True)
        boss.send(READY)
        boss.recv()
        with Meter(task) as meter:
            size, count = _long(task.size_bytes), _long(task.count)
            _done(code.ping(out, into, payload, size, count, trips_ns))
        boss.recv()
        boss.send(meter.add_to(latencies(list(trips_ns), task)))
        boss.recv()


def echo(task: Task, boss: Connection) -> None:
    """Send back what comes."""
    code = library()
    with ExitStack() as stack:
        out, into = _lines(task, stack, boss, first=False)
        boss.send(READY)
        with Meter(task) as meter:
            _done(code.echo(out, into, _long(task.count)))
        boss.send(meter.add_to(Report(events=task.count)))
        boss.recv()
