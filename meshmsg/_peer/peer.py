"""`Peer`: one embedded node in a user's process."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

from meshmsg import _platform
from meshmsg._groups.consumer import Member
from meshmsg._groups.consumer_messages import MemberSetup
from meshmsg._model.codecs import Codec, check_type, codec_for
from meshmsg._model.config import (
    OVERFLOW_WORDS,
    PeerConfig,
    Record,
    Stream,
    Tuning,
    load_toml,
    otel_from_env,
)
from meshmsg._model.discovery_config import DEFAULT_MESH, Discovery, named_mesh
from meshmsg._model.errors import ClosedError, ConfigError, LogError, WaitTimeout
from meshmsg._model.event import NUMBER_MAX, Position
from meshmsg._model.extras import need
from meshmsg._model.monitor_config import Monitor
from meshmsg._model.multicast_config import Feed
from meshmsg._model.security_config import Security
from meshmsg._model.topics import TopicFilter, check_topic, foreign_wildcards
from meshmsg._model.units import addresses, check_count, one_of, parse_time, several
from meshmsg._peer.forks import is_forked, own
from meshmsg._peer.node import Node
from meshmsg._peer.presence import PeerChange, PeerInfo, PeerWatch
from meshmsg._publish.event_runs import headers_fit
from meshmsg._receive.committed_positions import Bookmarks
from meshmsg._receive.subscription import (
    OnLoss,
    StartFrom,
    Subscription,
    check_on_loss,
    member_options,
    parse_start,
)
from meshmsg._receive.subscription_io import Intake
from meshmsg._replay.recorder import Recorder
from meshmsg._wire.control import ACTIONS, Operate
from meshmsg.recovery.stream.ledger import Ledger

log = logging.getLogger("meshmsg.peer")

#: Streams with these words keep what subscribers have not received, so `flush` waits for them.
WAITED_FOR = ("block", "buffer", "spill")
#: How long subscribers may take to receive everything when an error or Ctrl-C ends a with block.
HURRY_S = 0.2
#: group, prefetch, ack_timeout, max_attempts, order, auto_ack
GroupArguments = tuple[str | None, int, float | str, int, str, bool]
GROUP_DEFAULTS = (64, 30.0, 5, "key", False)

try:
    __version__ = version("meshmsg")
except PackageNotFoundError:  # pragma: no cover - run from a tree that was never installed
    __version__ = "0+unknown"


class PeerBase:
    """What `Peer` and `AsyncPeer` have in common: configuration and the node behind."""

    def __init__(
        self,
        name: str,
        *,
        streams: Stream | Sequence[Stream] = (),
        bind: str | Sequence[str] = (),
        connect: str | Sequence[str] = (),
        interface: str = "127.0.0.1",
        second_interface: str | None = None,
        mesh: str = DEFAULT_MESH,
        data_dir: str | Path | None = None,
        feeds: Feed | Sequence[Feed] = (),
        record: str | Sequence[str] | Record | None = None,
        discovery: Discovery | str | None = None,
        security: Security | None = None,
        monitor: Monitor | str | None = None,
        audit: bool | str = False,
        otel: bool | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self.config = PeerConfig(
            name=name,
            streams=(streams,) if isinstance(streams, Stream) else tuple(streams),
            bind=addresses("bind", bind),
            connect=addresses("connect", connect),
            interface=interface,
            second_interface=second_interface,
            mesh=named_mesh(mesh, os.environ),
            data_dir=None if data_dir is None else str(data_dir),
            feeds=several("feeds", feeds, Feed, "a Feed or a list of them"),
            record=Record.of(record),
            discovery=Discovery.from_env(os.environ) if discovery is None else discovery,  # type: ignore[arg-type]
            security=Security.from_env(os.environ) if security is None else security,
            monitor=Monitor.from_env(monitor, os.environ),
            audit=audit,
            otel=otel_from_env(otel, os.environ),
            tuning=tuning or Tuning(),
        )
        self._node: Node | None = None
        self._monitor: Any = None
        self._spans: Any = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._was_open = False

    @property
    def name(self) -> str:
        """The peer's name."""
        return self.config.name

    @property
    def addresses(self) -> list[str]:
        """Where other peers can connect to; known once it is open."""
        return self._open_node().addresses

    @property
    def address(self) -> str:
        """The first of its addresses."""
        return self.addresses[0]

    def stats(self) -> dict[str, Any]:
        """Figures of streams, subscriptions, links and counters, as plain data."""
        return self._open_node().stats()

    @property
    def monitor(self) -> Any:
        """The `MonitorServer` that shows its figures, or `None`; see `meshmsg.monitor`."""
        return self._monitor

    @property
    def recorder(self) -> Recorder | None:
        """What is recorded, with `losses` and `lost`; `None` without `record=`.

        The object outlives the peer.  Raises `ClosedError`.
        """
        return self._open_node().recorder

    def peers(self) -> list[PeerInfo]:
        """The other peers that are here, with what they do; see `watch_peers`."""
        return self._open_node().finder.peers()

    def on_peers(self, callback: Callable[[PeerChange], Any]) -> Callable[[], None]:
        """Call back, on a thread for it, for each peer that joins, changes, leaves or is lost.

        First for each that is here already.  What is returned ends it when called.
        """
        return self._open_node().finder.hub.call(callback)

    def _start(self) -> None:
        if is_forked(self._node):
            self._open_node().open()
        if self._node is not None or self._was_open:
            raise ClosedError("a peer is opened once: make a new one")
        otel = need("meshmsg.otel", "otel", "otel") if self.config.otel else None
        monitor = self._open_monitor()
        try:
            with _platform.current().at(self.config.name):
                self._spans = (
                    None if otel is None else otel.open_spans(self.config.name, headers_fit)
                )
                node = Node(self.config, __version__, self._spans)
                own(node)
                node.open()
        except BaseException:
            if monitor is not None:
                monitor.close()
            raise
        node.draining.close = _closing(weakref.WeakMethod(self._close_drained))
        self._node, self._monitor = node, monitor
        self._was_open = True
        self._finalizer = weakref.finalize(self, _abandon, node, monitor)
        if otel is not None:
            otel.open_meter(self)

    def _open_monitor(self) -> Any:
        """Listen where figures are asked for.  That room is above this one: found by its name."""
        if self.config.monitor is None:
            return None
        return need("meshmsg.monitor", "monitor", "monitor").open_monitor(self)

    def _open_node(self) -> Node:
        if self._node is None:
            raise ClosedError(
                "the peer is closed" if self._was_open else "the peer is not open: use a with block"
            )
        return self._node

    def _intake(
        self,
        topics: tuple[str, ...],
        start: StartFrom,
        name: str,
        codec: Any,
        type: Any,
        hold: bool,
    ) -> Intake:
        check_count("topics", topics)
        if codec is not None and type is not Any:
            raise ConfigError("type", "goes with the stream's own codec: leave out codec=")
        node = self._open_node()
        chosen: Codec | None = None if codec is None else codec_for(codec)
        if type is not Any:
            check_type(type)
        wanted = TopicFilter(topics)
        for pattern in topics:
            if hint := foreign_wildcards(pattern):
                log.warning("subscribing to %r: %s", pattern, hint)
        begin = parse_start(start)
        data_dir = node.config.data_dir
        with _platform.current().at(node.config.name):
            bookmarks = Bookmarks(data_dir, name) if name and data_dir is not None else None
        if begin.committed is not None:
            if bookmarks is None:
                problem = "'committed' needs a place and a name: Peer(data_dir=...), name='...'"
                raise ConfigError("start", problem)
            bookmarks.claim()
            begin = dataclasses.replace(begin, committed=bookmarks.read())
        elif hold:
            raise ConfigError("hold", "goes with start='committed': it holds what comes after that")
        with node.making:
            intake = node.new_intake(Intake, wanted, chosen, type, begin)
            intake.bookmarks = bookmarks
            intake.hold = bool(hold)
            node.add_intake(intake, name)
        return intake

    def _inlet(
        self,
        topics: tuple[str, ...],
        start: StartFrom,
        name: str,
        codec: Any,
        type: Any,
        hold: bool,
        options: GroupArguments,
    ) -> Intake | Member:
        """A subscription of its own, or a member of a group."""
        group, *others = options
        if group is None:
            if tuple(others) != GROUP_DEFAULTS:
                words = "prefetch, ack_timeout, max_attempts, order and auto_ack"
                raise ConfigError("group", f"is missing: {words} go with group='...'")
            return self._intake(topics, start, name, codec, type, hold)
        if hold:
            raise ConfigError("hold", "is for subscriptions of their own, not for groups")
        check_count("topics", topics)
        if codec is not None and type is not Any:
            raise ConfigError("type", "goes with the stream's own codec: leave out codec=")
        begin = parse_start(start)
        if begin.committed is not None:
            raise ConfigError("start", "a group goes on where it is by itself: not 'committed'")
        node = self._open_node()
        wanted = TopicFilter(topics)
        setup = MemberSetup(
            sub=_platform.randbits(63),
            topics=wanted,
            options=member_options(group, *options[1:]),
            mesh=node.config.mesh,
            codec=None if codec is None else codec_for(codec),
            type=type,
            start=begin,
        )
        with node.making:
            inlet = node.work_inlet(setup.options.prefetch)
            member = Member(setup, inlet, node.post, node.wake)
            node.add_member(member, name)
        return member

    def _shut(self, deadline: float) -> None:
        """Drain what is promised, then close everything."""
        if is_forked(self._node):  # it is not ours to close
            return
        node, self._node = self._node, None
        if node is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        monitor, self._monitor = self._monitor, None
        try:
            behind = self._drain(node, deadline)
        finally:
            if monitor is not None:
                monitor.close()
        if behind:
            warnings.warn(
                f"peer {node.config.name!r} closed before these had received everything: {behind}",
                RuntimeWarning,
                stacklevel=3,
            )

    def _close_drained(self, deadline: float) -> None:
        """Close for an operator, on the thread of a drain: nobody is there to be warned."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            self._shut(deadline)
        for warning in caught:
            log.warning("%s", warning.message)

    def _drain(self, node: Node, deadline: float) -> str:
        """Close a node in order; returns who had not received everything."""
        with contextlib.suppress(LogError, WaitTimeout):  # what matters of it, closing finds too
            node.publisher.durable.flush(max(0.0, deadline - _platform.monotonic()))
        left = max(0.0, deadline - _platform.monotonic())
        behind = node.publisher.flush(left, words=OVERFLOW_WORDS, closing=True)
        node.publisher.finish()
        failed = None if node.recorder is None else node.recorder.stop()
        for intake in list(node.intakes.values()):
            node.drop_intake(intake)
        for member in list(node.members.values()):
            node.drop_member(member)
        node.see_off(max(0.0, deadline - _platform.monotonic()))
        node.stop(max(0.0, deadline - _platform.monotonic()))
        failed = node.publisher.durable.error or failed
        if failed is not None:
            raise failed
        return ", ".join(sorted({claim.label for claim in behind}))


def _closing(close: weakref.WeakMethod[Callable[[float], None]]) -> Callable[[float], None]:
    """A call that does not keep a peer open which its program has dropped."""

    def close_if_there(deadline: float) -> None:
        found = close()
        if found is not None:
            found(deadline)

    return close_if_there


def _abandon(node: Node, monitor: Any) -> None:
    """Of a peer that was never closed: end its threads, promise nothing."""
    if not is_forked(node) and not node.stopped.is_set():
        warnings.warn(f"peer {node.config.name!r} was not closed", ResourceWarning, stacklevel=2)
        if monitor is not None:
            monitor.close()
        node.stop(0.0)


class Peer(PeerBase):
    """One node of the mesh, in this process; publishes, subscribes, talks to peers directly.

    >>> with Peer("pricing", streams=[Stream("quotes.**")]) as peer:          # doctest: +SKIP
    ...     peer.wait_for_subscribers("quotes.AAPL", count=1, timeout=5)
    ...     peer.publish("quotes.AAPL", {"bid": 101.5})
    """

    @classmethod
    def from_toml(cls, path: str | Path) -> Peer:
        """A peer as a `mesh.toml` describes it.  Raises `ConfigError`."""
        return cls.from_config(load_toml(path))

    @classmethod
    def from_config(cls, config: PeerConfig) -> Peer:
        """A peer as a configuration describes it: `dataclasses.replace` changes one.

        >>> from dataclasses import replace
        >>> config = replace(Peer("desk").config, mesh="prod")
        >>> Peer.from_config(config).config.mesh
        'prod'
        """
        return cls(**config_arguments(config))

    def _start(self) -> None:
        super()._start()
        if type(self).publish is Peer.publish:
            # One call less an event, which is a tenth of what it costs.
            self.publish = self._open_node().publisher.publish  # type: ignore[method-assign,assignment]

    def __enter__(self) -> Peer:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(timeout=drain_s(kind))

    def open(self) -> Peer:
        """Open without a with block; `close` is then the caller's duty.  Raises `BindError`."""
        self._start()
        return self

    def close(self, timeout: float | None = None) -> None:
        """Hand over what was published, say good-bye, free everything.  Safe to call again."""
        wait = self.config.tuning.close_timeout_s if timeout is None else timeout
        self.__dict__.pop("publish", None)
        self._shut(_platform.monotonic() + wait)

    def publish(
        self,
        topic: str,
        data: Any,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Publish one event; returns its position.  Safe from any thread.

        Raises `NoStream`, `TopicError`, `EventTooLarge`, `PayloadError`, and `NameInUse` while an
        earlier peer has this one's name; where the stream waits for slow subscribers,
        `PublishTimeout` after `timeout` seconds.  On a durable stream the event is in the log when
        this returns; raises `LogFull`, `LogError` if it is not.
        """
        node = self._node
        if node is None:
            node = self._open_node()
        return node.publisher.publish(topic, data, key=key, headers=headers, timeout=timeout)  # type: ignore[return-value]

    def publish_many(
        self,
        topic: str,
        items: Iterable[Any],
        *,
        keys: Sequence[str | None] | None = None,
        headers: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Position | None:
        """Publish many events of one topic: the fast path.  Returns the last one's position.

        `None` if there were none.  Raises what `publish` does: all events before the one that it
        is about are published then, and none after it.  The error's `published` and `last` say how
        many that are and where the last one is.  Where `items` itself raises, nothing is.
        """
        return self._open_node().publisher.publish_all(topic, items, keys, headers, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was published is handed over.  Raises `WaitTimeout`.

        Sent, for every stream; and received by every subscriber, for streams that wait for them
        (`block`, `buffer`, `spill`).  Of durable streams, on the disk as well, unless `fsync` is
        `never`; raises `LogError` where that fails.
        """
        deadline = None if timeout is None else _platform.monotonic() + timeout
        node = self._open_node()
        node.publisher.durable.flush(timeout)
        left = None if deadline is None else max(0.0, deadline - _platform.monotonic())
        behind = node.publisher.flush(left, words=WAITED_FOR)
        if behind:
            node.check_running()
            raise WaitTimeout(behind_text(behind, timeout))

    def wait_for_subscribers(
        self, topic: str, count: int = 1, timeout: float | None = None
    ) -> None:
        """Wait until `count` subscribers take the topic: none of them misses what comes next.

        Raises `WaitTimeout`.
        """
        check_wait(topic, count)
        have = self._open_node().publisher.subscribers.wait_for(topic, count, timeout)
        if have < count:
            raise WaitTimeout(f"{have} of {count} subscribers for {topic!r} after {timeout:g} s")

    def subscribe(
        self,
        *topics: str,
        start: StartFrom = "live",
        on_loss: OnLoss = "report",
        name: str = "",
        codec: str | Codec | None = None,
        type: Any = Any,
        hold: bool = False,
        group: str | None = None,
        prefetch: int = 64,
        ack_timeout: float | str = 30.0,
        max_attempts: int = 5,
        order: str = "key",
        auto_ack: bool = False,
    ) -> Subscription:
        """Receive the events of one or several topic patterns, from every publisher that has them.

        `start` is `"live"`, `"earliest"`, `"last:100"`, a time, a position, or `"committed"`: where
        the last subscription of this `name` called `commit`, and the earliest where none did.
        With `hold`, publishers keep in their logs what it has not committed, whatever their
        retention says, also while it is away.  `type` decodes and checks payloads into a msgspec
        Struct, a dataclass or any other type that msgspec knows.

        With `group`, each event goes to one of the group's members, and comes again until one of
        them has acknowledged it (see docs/groups.md): `prefetch` is how many events each publisher
        sends ahead of acknowledgements, `ack_timeout` how long a member may sit on them, and after
        `max_attempts` an event goes to the stream `dead.<group>`.  With `order="key"` events of one
        key are handled one after the other; `auto_ack` acknowledges what was handed over when the
        next is asked for.  Raises `TopicError`, `ConfigError`.
        """
        check_on_loss(on_loss)
        options = (group, prefetch, ack_timeout, max_attempts, order, auto_ack)
        inlet = self._inlet(topics, start, name, codec, type, hold, options)
        return Subscription(self._open_node(), inlet, on_loss)

    def ledger(self, timeout: float = 2.0) -> Ledger:
        """Published = delivered + filtered + lost + in flight, for each stream and subscription."""
        return ledger_of(self, timeout)

    def ask(
        self,
        what: str,
        timeout: float = 5.0,
        *,
        strict: bool = True,
        event: Position | None = None,
    ) -> dict[str, Any]:
        """Ask every connected peer for its `"ledger"` or `"stats"`; answers by address.

        With `"trace"`, for what it knows of an event.  Raises `WaitTimeout` for one that does not
        answer in time; with `strict=False` it is left out.
        """
        if (what == "trace") != (event is not None):
            raise ConfigError("event", "goes with ask('trace'), and ask('trace') with it")
        answers = ask_all(self, what, timeout, event)
        for answer in answers.values() if strict else ():
            if isinstance(answer, WaitTimeout):
                raise answer
        return {a: answer for a, answer in answers.items() if not isinstance(answer, WaitTimeout)}

    def operate(
        self,
        action: str,
        name: str = "",
        *,
        stream: str = "",
        start: StartFrom | None = None,
        most: int = 0,
        within: float | str = 0.0,
        dry_run: bool = False,
        timeout: float = 5.0,
    ) -> dict[str, Any]:
        """Have every peer that this one dialled do something; what was done, by address.

        `"group pause"`, `"group resume"`, `"group reset"` (to `start`), `"group redrive"`, `"cursor
        ls"`, `"cursor reset"`, `"cursor drop"`, `"evict"`, `"drain"`: see docs/operations.md.  With
        `dry_run`, what would be.  Raises `ConfigError`, `WaitTimeout`.
        """
        order = order_of(action, name, stream, start, most, within, dry_run)
        node = self._open_node()
        targets = node.finder.questioned().items()
        dialled = {address: link for address, link in targets if not isinstance(link, bytes)}
        answers = node.questions.operate(dialled, order, timeout)
        for answer in answers.values():
            if isinstance(answer, WaitTimeout):
                raise answer
        return answers

    def watch_peers(self) -> PeerWatch:
        """Who joins, changes, leaves or is lost, to iterate over; those here already come first."""
        watch: PeerWatch = self._open_node().finder.hub.watch(PeerWatch)
        return watch

    def wait_for_peers(self, count: int = 1, timeout: float | None = 5.0) -> None:
        """Wait until this many other peers are connected, whoever dialled.

        Raises `WaitTimeout`, `PeerRefused`.
        """
        node = self._open_node()
        deadline = None if timeout is None else _platform.monotonic() + timeout
        while (have := node.finder.connected()) < count:
            node.check_running()
            refusal = node.refusal()
            if refusal is not None:
                raise refusal
            if deadline is not None and _platform.monotonic() >= deadline:
                links = ", ".join(
                    f"{link.address} is {link.state}" for link in node.links.table.all()
                )
                raise WaitTimeout(f"{have} of {count} peers ({links or 'none known'})")
            _platform.sleep(0.005)


def order_of(
    action: str,
    name: str,
    stream: str,
    start: StartFrom | None,
    most: int,
    within: float | str,
    dry_run: bool,
) -> Operate:
    """What an operator wants, as it is said to a peer; raises `ConfigError`."""
    begin = None if start is None else parse_start(start)
    if begin is not None and begin.committed is not None:
        raise ConfigError("start", "'committed' is where it is: 'earliest', 'live', a time, ...")
    place = None if begin is None else begin.for_stream(stream)
    if begin is not None and begin.position is not None:
        stream = stream or begin.position.stream
        if stream != begin.position.stream:
            raise ConfigError("start", f"{start} is of another stream than {stream!r}")
        place = begin.for_stream(stream)
    if place is not None and max(place.epoch, place.value) > NUMBER_MAX:
        raise ConfigError("start", f"{start}: no stream gets beyond {NUMBER_MAX:,}")
    return Operate(
        0,
        one_of("action", action, ACTIONS),  # type: ignore[arg-type]
        name,
        stream,
        place,
        most,
        parse_time("within", within),
        dry_run,
    )


def drain_s(kind: type[BaseException] | None) -> float | None:
    """How long leaving a with block may wait for subscribers; `None` for as long as `close` does.

    After an error or Ctrl-C nobody wants to wait for slow ones.  `sys.exit` is no error: a handler
    of SIGTERM calls it to end in order.
    """
    return None if kind is None or issubclass(kind, SystemExit) else HURRY_S


def config_arguments(config: PeerConfig) -> dict[str, Any]:
    """A configuration as the keyword arguments of a peer."""
    return {field: getattr(config, field) for field in PeerConfig.__dataclass_fields__}


def check_wait(topic: str, count: int) -> None:
    """Arguments of `wait_for_subscribers`."""
    check_topic(topic)
    if count < 1:
        raise ConfigError("count", f"{count!r} is not a number of subscribers: at least 1")


def behind_text(behind: Iterable[Any], timeout: float | None) -> str:
    """Who has not received everything."""
    earlier = "what an earlier start published"  # a group, in the log
    places = ((c.label, c.received if c.received >= 0 else earlier) for c in behind)
    names = sorted({f"{label} at {place}" for label, place in places})
    return f"not received by all after {timeout or 0:g} s: {', '.join(names)}"


def ask_all(
    peer: PeerBase, what: str, timeout: float, event: Position | None = None
) -> dict[str, Any]:
    """What every connected peer says, by its address: a `WaitTimeout` for one that says nothing.

    Waits as it would in a thread: not for an event loop.
    """
    node = node_of(peer)
    return node.questions.ask_all(node.finder.questioned(), what, timeout, event)


def ledger_of(peer: PeerBase, timeout: float) -> Ledger:
    """What `ledger` returns.  Waits as it would in a thread: not for an event loop."""
    node = node_of(peer)
    node.publisher.subscribers.refresh(timeout)
    return node.ledger()


def node_of(peer: PeerBase) -> Node:
    """Return what an open peer consists of, for edges, tools and tests; raises `ClosedError`."""
    return peer._open_node()
