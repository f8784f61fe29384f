"""StatsD metrics become events: figures of each interval, and what UDP lost on the way."""

import time

import statsd  # the client that services have today, unchanged

from meshmsg import Peer, Stream
from meshmsg.statsd import StatsdReporter, StatsdServer


def main() -> None:
    with (
        Peer("metrics", streams=[Stream("statsd.**", overflow="drop_oldest")]) as peer,
        Peer("dashboard", connect=peer.address) as dashboard,
        dashboard.subscribe("statsd.**") as events,
        StatsdServer(peer, "127.0.0.1:0", interval="1h") as server,  # ended by flush() here
    ):
        peer.wait_for_subscribers("statsd.server", timeout=5)
        host, port = server.address
        measure(statsd.StatsClient(host, port, prefix="shop"))
        with StatsdReporter(peer, f"{host}:{port}"):
            pass  # the peer's own statistics, by the same way; reports at least once

        while server.stats()["lines"] < 1102:  # UDP: nobody says when it has arrived
            time.sleep(0.01)
        server.flush()
        show(events)


def measure(client: statsd.StatsClient) -> None:
    with client.pipeline() as pipe:  # many metrics a packet
        for n in range(1000):
            pipe.timing("checkout", n / 10)
        for _ in range(100):
            pipe.incr("orders", rate=1)
    client.gauge("basket", 12)
    client.gauge("basket", -2, delta=True)
    client.close()


def show(events) -> None:
    while (event := events.get(timeout=5)) is not None:
        data = event.data
        if event.topic.startswith("statsd.aggregate.shop"):
            kept = ("count", "value", "mean", "median", "p95", "p99.9")
            print(event.topic, {name: data[name] for name in kept if name in data})
        elif event.topic == "statsd.server":
            print("malformed:", data["malformed"], "dropped:", data["dropped_packets"])
            return


if __name__ == "__main__":
    main()
