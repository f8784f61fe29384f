"""Forks of a process with an open peer, for `RemotePeer.use`."""

from __future__ import annotations

import multiprocessing
import os

from meshmsg import ClosedError, Peer


def publish_beside_a_child(peer: Peer) -> tuple[int, list[int]]:
    """A child that publishes, too: its exit status is 0 if it could not; and what is published."""
    done: list[int] = []

    def go(first: int, stop: int) -> None:
        for n in range(first, stop):
            peer.publish("orders.a", b"%d" % n)
            done.append(n)

    go(0, 5)
    child = os.fork()
    if child == 0:
        try:
            go(100, 120)
        finally:
            os._exit(0 if done == [0, 1, 2, 3, 4] else 1)
    go(5, 25)
    status = os.waitpid(child, 0)[1]
    peer.flush(30)
    return status, done


def leave_block_in_a_child(peer: Peer) -> int:
    """The exit status of a child that leaves a `with` block of its parent's peers."""

    def fork() -> int:
        with (
            Peer("inner") as inner,
            inner.subscribe("a.**"),
            inner.watch_peers(),
        ):
            return os.fork()

    child = fork()
    if child == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def publish_as_others(peer: Peer, later: Peer) -> str:
    """In a child: by a peer that was made before the fork and one that is made after it."""
    with later, Peer("made", connect=later.config.connect) as made:
        for child in (later, made):
            child.wait_for_subscribers("from.child", timeout=30)
            child.publish("from.child", child.name)
            child.flush(30)
    return "done"


def publish_in_processes(peer: Peer, count: int) -> tuple[list[str], list[int | None]]:
    """What children of multiprocessing are told who publish, and how they end."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()

    def publish(n: int) -> None:
        try:
            told.put(repr(peer.publish("ticks.a", n)))
        except ClosedError as error:
            told.put(type(error).__name__)

    children = [context.Process(target=publish, args=(n,)) for n in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return [told.get() for _ in children], [child.exitcode for child in children]
