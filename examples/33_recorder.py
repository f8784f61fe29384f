"""A recorder keeps a stream: its publisher is killed for good, and a late consumer gets it all."""

import multiprocessing
import tempfile
import time

from meshmsg import Peer

processes = multiprocessing.get_context("spawn")
COUNT = 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as data_dir:
        process, address, pipe = start_publisher()
        with Peer("recorder", record="quotes.**", data_dir=data_dir, connect=address) as recorder:
            pipe.send("go")  # a volatile stream: nobody but the recorder ever listens
            print("published:", pipe.recv())
            wait_until_recorded(recorder)
            process.kill()
            process.join()
            print("-- the publisher is gone, with all that it had in memory --")
            with (
                Peer("analyst", connect=recorder.address) as analyst,
                analyst.subscribe("quotes.**", start="earliest") as events,
            ):
                values = [events.get(timeout=10).data for _ in range(COUNT)]
                print("the analyst got", len(values), "events, from", values[0], "to", values[-1])
                print("reported lost:", events.lost)


def wait_until_recorded(recorder: Peer) -> None:
    while True:
        streams = recorder.stats()["recorder"]["streams"]
        if streams and streams[0]["events"] == COUNT:
            print("recorded:", streams[0]["events"], "events of", streams[0]["stream"])
            return
        time.sleep(0.01)


def start_publisher():
    ours, theirs = processes.Pipe()
    process = processes.Process(target=publisher, args=(theirs,), daemon=True)
    process.start()
    return process, ours.recv(), ours


def publisher(pipe) -> None:
    """The other process."""
    with Peer("pricing") as pricing:
        pipe.send(pricing.address)
        pipe.recv()
        pricing.publish_many("quotes.AAPL", range(COUNT))
        pipe.send(COUNT)
        pipe.poll(None)  # until it is killed


if __name__ == "__main__":
    main()
