"""The daemon's figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from meshmsg import BindError, ConfigError
from meshmsg.spark_sink.sink.config import metrics_address

WHOLE = {
    "events_in": ("events_recorded_total", "Events recorded since the daemon's start"),
    "restarts": ("driver_restarts_total", "Times that Spark's driver was started again"),
}
GAUGES = {
    "ready": ("ready", "1 while the queries run and their batches are written"),
    "streams": ("streams", "Streams in the log"),
    "peers": ("peers", "Peers connected"),
}
TOTALS = {
    "commits": ("commits_total", "Batches written"),
    "events": ("events_total", "Events of the written batches"),
    "rows": ("rows_total", "Rows written"),
    "lost": ("events_lost_total", "Events that are lost, in the table of losses"),
    "quarantined": ("events_quarantined_total", "Payloads that were not what was declared"),
    "bytes": ("bytes_total", "Bytes of the written files"),
    "failures": ("failures_total", "Times that the query failed and was started again"),
    "repeated": ("batches_repeated_total", "Batches that Spark ran again and the table had"),
}
STATES = {
    "lag_events": ("lag_events", "Events in the log that are not in the table"),
    "lag_s": ("lag_seconds", "Age of the newest event in the table, while there are newer ones"),
    "batch_ms": ("batch_milliseconds", "Time that the last batch took"),
}


class MetricsServer:
    """Serves figures over HTTP while it is open; raises `BindError`, `ConfigError`."""

    def __init__(self, address: str, figures: Callable[[], dict[str, Any]]) -> None:
        self.host, self.port = metrics_address(address)
        self._figures = figures
        self._server: Any = None
        self._thread: Any = None

    def __enter__(self) -> MetricsServer:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            problem = "needs prometheus_client: pip install 'meshmsg[spark]'"
            raise ConfigError("metrics", problem) from None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(self.port, self.host, registry)
        except OSError as error:
            where = f"{self.host}:{self.port}"
            raise BindError(where, f"{error.strerror or error}") from None
        self.port = self._server.server_port
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Any]:
        """What Prometheus gets when it asks."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._figures()
        for key, (name, text) in WHOLE.items():
            yield CounterMetricFamily(f"meshmsg_sink_{name}", text, value=found[key])
        for key, (name, text) in GAUGES.items():
            yield GaugeMetricFamily(f"meshmsg_sink_{name}", text, value=float(found[key]))
        for kind, table in ((CounterMetricFamily, TOTALS), (GaugeMetricFamily, STATES)):
            for key, (name, text) in table.items():
                family = kind(f"meshmsg_sink_{name}", text, labels=["output"])
                for row in found["outputs"]:
                    family.add_metric([row["output"]], float(row[key]))
                yield family

    def describe(self) -> Iterator[Any]:
        """Nothing: the registry would ask for figures before there are any."""
        return iter(())
