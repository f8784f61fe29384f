"""The sink daemon: what a publisher sends is in a table, each event once."""

import tempfile

import pyarrow.compute as pc

from meshmsg import Peer, Stream
from meshmsg.spark_sink.sink import SinkProcess

COLUMNS = "symbol STRING, bid DOUBLE, ask DOUBLE"
COUNT = 5000


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Peer("pricing", streams=[Stream("quotes.**", overflow="block")]) as peer,
        # What `meshmsg sink --out ... --connect ...` runs, as a process beside this one.
        SinkProcess(
            f"{folder}/lake/quotes",
            *("--connect", peer.address, "--topics", "quotes.**"),
            *("--partition-by", "topic,date", "--payload", COLUMNS, "--master", "local[2]"),
        ) as sink,
    ):
        # From here on nothing is missed: the daemon records while Spark still starts.
        peer.wait_for_subscribers("quotes.eu", count=1, timeout=60)
        for region in ("eu", "us"):
            quotes = [{"symbol": "ACME", "bid": n / 100, "ask": n / 100 + 1} for n in range(COUNT)]
            peer.publish_many(f"quotes.{region}", quotes)
        # A payload that is not as declared is set aside, with the reason, and stops nothing.
        peer.publish("quotes.eu", {"symbol": "ACME", "bid": "a lot"})

        sink.wait_rows(2 * COUNT, timeout=500)
        table = sink.read(["topic", "date", "bid", "ask"])  # any reader of parquet will do
        spread = pc.mean(pc.subtract(table["ask"], table["bid"])).as_py()
        print(f"{table.num_rows} rows in {sorted(set(table['topic'].to_pylist()))}")
        print(f"the mean spread is {spread:.2f}")
        sink.wait_for(lambda: sink.output().get("quarantined"), timeout=60)
        print(f"{sink.output()['quarantined']} payload was set aside")
        print(f"the daemon ended with status {sink.stop()}")


if __name__ == "__main__":
    main()
