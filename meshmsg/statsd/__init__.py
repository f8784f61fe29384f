"""StatsD at the edge of the mesh: metrics over UDP become events, and a peer's figures metrics.

>>> from meshmsg import Peer
>>> from meshmsg.statsd import StatsdServer
>>> with Peer("metrics") as peer, StatsdServer(peer, "127.0.0.1:0") as server:
...     host, port = server.address

Needs `pip install 'meshmsg[statsd]'`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from meshmsg._bridge.lifecycle import Edge
from meshmsg._bridge.plaintext import check_plain
from meshmsg._bridge.publishing import publish_patiently
from meshmsg._model.errors import ClosedError, ConfigError, MeshError, WaitTimeout
from meshmsg._model.extras import need
from meshmsg._model.topics import check_topic
from meshmsg._model.units import parse_size, parse_time, split_host
from meshmsg._peer.peer import Peer
from meshmsg._runtime.guard import Guard
from meshmsg.statsd.lines import Meaning, topic_of
from meshmsg.statsd.report import Growth, metrics_of, word
from meshmsg.statsd.signed_packets import SignedPackets
from meshmsg.statsd.udp_socket import StatsdInlet

if TYPE_CHECKING:
    from meshmsg.statsd.aggregates import Aggregates, Figures

__all__ = ["ReportSender", "StatsdReporter", "StatsdServer"]

log = logging.getLogger("meshmsg.statsd")

#: Datagrams taken from the socket in one go.
BURST = 2_000
#: While figures are published, the socket is emptied after so many.
FIGURES_AT_ONCE = 50
LOOK_S = 0.1
#: After a short burst it waits so long for more: what a burst costs is shared by more lines, and
#: metrics are in no hurry.  The socket's buffer holds what comes meanwhile.
GATHER_S = 0.002
#: Raw samples wait so long for more of their kind: a call for each would cost more than they do.
RAW_S = 0.05
FORMS_MAX = 100_000
ETHERNET_BYTES = 1_432


def load_core() -> ModuleType:
    """What adds metrics up, which a sender does not need; raises `ConfigError`."""
    need("datasketches", "statsd", "statsd")
    return need("meshmsg.statsd.aggregates", "statsd", "statsd")


class StatsdServer(Edge):
    """Receives StatsD metrics and publishes them, added up for each interval, as events.

    `<prefix>.aggregate.<name>` has the figures of an interval, `<prefix>.server` what the server
    saw in it, and with `raw=True` each sample is an event at `<prefix>.raw.<name>`.  With `secret`
    only packets signed as Brubeck's are taken.  Raises `ConfigError`, `BindError`.
    """

    @staticmethod
    def load() -> None:
        """Load what adds metrics up, which the first server would; raises `ConfigError`."""
        load_core()

    def __init__(
        self,
        peer: Peer,
        bind: str = "127.0.0.1:8125",
        *,
        prefix: str = "statsd",
        interval: float | str = "10s",
        raw: bool = False,
        secret: str | bytes | None = None,
        series_max: int = 100_000,
        samples_max: int = 100_000,
        receive_buffer: int | str = "4MiB",
    ) -> None:
        super().__init__()
        core = load_core()
        self._peer = peer
        self._place = split_host("bind", bind)
        if not secret:  # packets that are signed prove who they are from
            check_plain(peer, "statsd", self._place[0])
        self._prefix = check_topic(prefix)
        self._interval_s = _interval(interval)
        self._raw = raw
        self._seal = SignedPackets(_bytes(secret)) if secret else None
        self._buffer_bytes = parse_size("receive_buffer", receive_buffer)
        self._books: Aggregates = core.Aggregates(
            series_max=series_max, samples_max=samples_max, raw=raw
        )
        self._counters = self._books.counters
        self._told: Counter[str] = Counter()
        self._drops = 0
        self._forms: dict[Meaning, tuple[str | None, dict[str, Any]]] = {}
        self._inlet: StatsdInlet | None = None
        self._guard = Guard("the StatsD server", Counter())
        self._flushes = threading.Condition()
        self._asked = self._done = 0

    def __enter__(self) -> StatsdServer:
        """Listen from here on."""
        self._check_unopened()
        self._inlet = StatsdInlet(*self._place, self._buffer_bytes)
        self._begin(self._run, "statsd")
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens at."""
        if self._inlet is None:
            raise ClosedError("the StatsD server is not open: use a with block")
        return self._inlet.address

    def stats(self) -> dict[str, Any]:
        """Counters since the start, the number of series, datagrams that the kernel dropped, and
        why nothing is published just now."""
        return {
            **{name: self._counters[name] for name in COUNTERS},
            "kernel_drops": self._drops,
            "series": self._books.series,
            "problem": self._guard.problem,
        }

    def flush(self, timeout: float | None = 10.0) -> None:
        """End the interval now; when this returns its figures are published."""
        with self._flushes:
            if not self.alive:
                raise ClosedError("the StatsD server is not open: use a with block")
            self._asked += 1
            mine = self._asked
            if not self._flushes.wait_for(lambda: self._done >= mine, timeout):
                raise WaitTimeout(f"the interval was not ended within {timeout:g} s")

    def close(self) -> None:
        """Publish the last interval and stop listening.  Safe to call again."""
        super().close()
        if self._inlet is not None:
            self._inlet.close()

    # The thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        self._began = self._raw_due = time.monotonic()
        self._guard.drive(self._turn, self._stopping.wait)
        with self._flushes:
            self._done = self._asked
            self._flushes.notify_all()

    def _turn(self) -> bool:
        """Take what has come and publish what is due; return False when it is over."""
        assert self._inlet is not None
        stopping = self._stopping.is_set()
        got = self._drain()
        now = time.monotonic()
        try:
            if self._raw and now >= self._raw_due:
                self._raw_due = now + RAW_S
                self._publish_raw()
            if stopping or now >= self._began + self._interval_s or self._asked > self._done:
                self._end_interval(now)
                return not stopping
        except ClosedError:
            log.warning("the peer was closed before the StatsD server")
            return False
        if got == 0:
            wait_s = RAW_S if self._raw else LOOK_S
            self._inlet.wait(min(wait_s, self._began + self._interval_s - now))
        elif got < BURST:
            time.sleep(GATHER_S)
        return True

    def _end_interval(self, now: float) -> None:
        asked = self._asked
        while self._drain() == BURST:
            pass
        if self._raw:
            self._publish_raw()
        took_s, self._began = now - self._began, now
        self._publish_interval(took_s)
        with self._flushes:
            self._done = max(self._done, asked)
            self._flushes.notify_all()

    def _drain(self) -> int:
        """Take what the socket has, up to a burst; how many datagrams that were."""
        assert self._inlet is not None
        packets = self._inlet.receive(BURST)
        if not packets:
            return 0
        got = len(packets)
        if self._seal is not None:
            packets = self._seal.open(packets, self._counters, now=time.time())
        self._books.add(packets)
        return got

    def _publish_raw(self) -> None:
        self._books.settle()
        for meaning, values in self._books.raw():
            topic, base = self._raw_form(meaning)
            items: list[dict[str, Any]]
            if meaning.kind == "gauge":
                items = [{**base, "value": v, "relative": signed} for signed, v in values]
            elif meaning.kind == "set":
                items = [{**base, "value": v.decode(errors="replace")} for v in values]
            else:
                items = [{**base, "value": v} for v in values]
            for item in items:
                self._publish(topic, item, None)

    def _raw_form(self, meaning: Meaning) -> tuple[str | None, dict[str, Any]]:
        """The topic of a run's samples, and what they have in common."""
        form = self._forms.get(meaning)
        if form is None:
            if len(self._forms) >= FORMS_MAX:
                self._forms.clear()
            base = {"type": meaning.kind, "rate": meaning.rate, "tags": _tags(meaning.tags)}
            form = topic_of(f"{self._prefix}.raw", meaning.name), base
            self._forms[meaning] = form
        return form

    def _publish_interval(self, interval_s: float) -> None:
        assert self._inlet is not None
        drops = self._inlet.kernel_drops()
        dropped = None if drops is None else drops - self._drops
        self._drops = drops or 0
        for number, found in enumerate(self._books.flush(interval_s), 1):
            self._publish_figures(found, interval_s, dropped)
            if number % FIGURES_AT_ONCE == 0:
                self._drain()  # or the socket overruns while a hundred thousand are published
        grown = {name: self._counters[name] - self._told[name] for name in COUNTERS}
        self._told = Counter(self._counters)
        seen = {"interval_s": interval_s, "dropped_packets": dropped, "series": self._books.series}
        self._publish(f"{self._prefix}.server", seen | grown, None)
        if dropped:
            log.warning("%d datagrams found the socket's buffer full: figures are too low", dropped)

    def _publish_figures(self, found: Figures, interval_s: float, dropped: int | None) -> None:
        tags = _tags(found.tags)
        data = {"name": found.name, "type": found.kind, "tags": tags, "interval_s": interval_s}
        # How many datagrams the kernel dropped meanwhile: with any, a count is only a lower bound.
        data |= found.figures | {"dropped_packets": dropped}
        key = ",".join([found.name, *(f"{name}:{value}" for name, value in tags.items())])
        topic = topic_of(f"{self._prefix}.aggregate", found.name)
        self._publish(topic, data, key if len(key.encode()) <= 255 else None)

    def _publish(self, topic: str | None, data: dict[str, Any], key: str | None) -> None:
        try:
            if topic is None:
                raise ConfigError("name", "is empty or too long for a topic")
            publish_patiently(self._peer, self._stopping, topic, data, key)
        except ClosedError:
            raise
        except MeshError as error:
            if not self._counters["unpublished"]:
                log.error("events could not be published: %s", error)
            self._counters["unpublished"] += 1


#: What is counted, and told with each interval.
COUNTERS = (
    "packets",
    "lines",
    "accepted",
    "malformed",
    "unsupported",
    "series_full",
    "samples",
    "bad_signatures",
    "stale_packets",
    "replayed_packets",
    "unpublished",
)


def _tags(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Tags as a mapping; the values of one that is given twice stand side by side."""
    tags: dict[str, str] = {}
    for name, value in pairs:
        tags[name] = f"{tags[name]},{value}" if name in tags else value
    return tags


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret


class StatsdReporter(Edge):
    """Sends a peer's own statistics to a StatsD server, each interval.

    Metrics are `<prefix>.<peer>.streams.<stream>.published` and so on: counters as what they grew
    by, everything else as gauges.  Raises `ConfigError`.
    """

    def __init__(
        self,
        peer: Peer,
        to: str = "127.0.0.1:8125",
        *,
        prefix: str = "meshmsg",
        interval: float | str = "10s",
    ) -> None:
        super().__init__()
        self._interval_s = _interval(interval)
        check_plain(peer, "statsd", split_host("to", to)[0])
        self._client = statsd_client(to)
        self._peer = peer
        self._prefix = f"{prefix}.{word(peer.name)}" if prefix else word(peer.name)
        self._growth = Growth()

    def __enter__(self) -> StatsdReporter:
        """Report from here on."""
        self._check_unopened()
        self._begin(self._run, "statsd-out")
        return self

    def report(self) -> None:
        """Send the figures of now."""
        send_report(self._client, self._prefix, self._peer.stats(), self._growth)

    def close(self) -> None:
        """Report once more and stop.  Safe to call again."""
        if self._stopping.is_set():
            return
        super().close()
        if self._thread is not None:
            self._try()
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_s):
            if not self._try():
                return

    def _try(self) -> bool:
        """Whether there will be more to report."""
        try:
            self.report()
        except ClosedError:
            log.warning("the peer was closed before its StatsD reporter: its last figures are lost")
            return False
        except Exception:  # a defect: the next one may go well
            log.exception("a report of statistics")
        return True


def _interval(given: float | str) -> float:
    interval_s = parse_time("interval", given)
    if interval_s <= 0:
        raise ConfigError("interval", "must be more than 0 seconds")
    return interval_s


def statsd_client(to: str) -> Any:
    """A client of the `statsd` package for `host:port`; raises `ConfigError`."""
    statsd = need("statsd", "statsd", "statsd")
    host, port = split_host("to", to)
    try:
        return statsd.StatsClient(host, port, maxudpsize=ETHERNET_BYTES, ipv6=":" in host)
    except OSError as error:
        raise ConfigError("to", f"{to!r}: {error}") from None


def send_report(client: Any, prefix: str, stats: dict[str, Any], growth: Growth) -> None:
    """One report, many metrics a packet."""
    counters, levels = metrics_of(stats)
    with client.pipeline() as pipe:
        for name, step in growth.since(counters).items():
            pipe.incr(f"{prefix}.{name}", int(step))
        for name, value in levels.items():
            pipe.gauge(f"{prefix}.{name}", value)


class ReportSender:
    """Sends the figures of any peers to a StatsD server, as `host:port`; until `close`.

    >>> sender = ReportSender("127.0.0.1:8125", "mesh")                        # doctest: +SKIP
    >>> for stats in peer.ask("stats").values():                               # doctest: +SKIP
    ...     sender.send(stats)

    Raises `ConfigError`.
    """

    def __init__(self, to: str, prefix: str) -> None:
        self._client = statsd_client(to)
        self._prefix = prefix
        self._growth: dict[str, Growth] = {}

    def send(self, stats: dict[str, Any]) -> None:
        """Send what counters of a peer grew by since its last figures, and its levels."""
        who = word(str(stats.get("peer", "")))
        growth = self._growth.setdefault(who, Growth())
        send_report(self._client, f"{self._prefix}.{who}", stats, growth)

    def close(self) -> None:
        """Close the socket."""
        self._client.close()
