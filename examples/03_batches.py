"""The fast path: hand over many events in one call, and take them a batch at a time."""

import time

from meshmsg import ConfigError, Peer

COUNT = 200_000


def main() -> None:
    quotes = [b"%064d" % n for n in range(COUNT)]  # bytes pass by the codec untouched
    with (
        Peer("pricing") as pricing,
        Peer("recorder", connect=pricing.address) as recorder,
        recorder.subscribe("quotes.**") as events,
    ):
        pricing.wait_for_subscribers("quotes.AAPL", timeout=5)
        began = time.perf_counter()
        last = pricing.publish_many("quotes.AAPL", quotes)
        received = batches = 0
        for batch in events.batches(timeout=5):
            batches += 1
            received += len(batch)
            if batch.stop > last.seq:
                break
        took = time.perf_counter() - began
        print(f"{received:,} events in {batches} batches and {took:.2f} s")
        print("the last batch:", batch)
        print("its columns: seqs", batch.seqs, "payloads", len(batch.payloads))
        show_arrow(batch)


def show_arrow(batch) -> None:
    """The same memory as an Arrow table, where pyarrow is installed."""
    try:
        table = batch.to_arrow()
    except ConfigError as error:  # says what to install
        print(error)
    else:
        print("as Arrow:", table.num_rows, "rows;", ", ".join(table.column_names))


if __name__ == "__main__":
    main()
