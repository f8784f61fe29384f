"""A stream as Nasdaq MoldUDP64: a listener loses a third of each line, and no message."""

import random
import threading

from meshmsg import Peer, Stream
from meshmsg.moldudp import MeshToMold, MoldListener

LINES = ["239.255.7.7:30501", "239.255.7.8:30503"]  # A and B
COUNT = 20_000


def main() -> None:
    rng = random.Random(7)
    with (
        Peer("exchange", streams=[Stream("feed.**")]) as exchange,
        Peer("gateway", connect=exchange.address) as gateway,
        Gateway(MeshToMold(gateway, "feed.**", LINES)) as running,
    ):
        exchange.wait_for_subscribers("feed.itch", timeout=5)
        position = exchange.publish("feed.itch", b"message 1")
        sender = running.opened()
        print("epoch", position.epoch, "is session", sender.session)

        with MoldListener(LINES, server=sender.address) as listener:
            listener.fault = lambda packet: rng.random() < 0.33  # of each line
            for first in range(2, COUNT + 1, 100):
                numbers = range(first, min(first + 100, COUNT + 1))
                exchange.publish_many("feed.itch", [b"message %d" % n for n in numbers])
            received = []
            while len(received) < COUNT:
                for item in listener.get(timeout=5):
                    received += item.messages  # or it is a MoldLoss: none here
            assert received == [b"message %d" % n for n in range(1, COUNT + 1)]
            stats = listener.stats()
            print(f"{stats['injected_drops']} packets lost, {stats['requests']} requests")
            print(f"{len(received)} messages in order, {stats.get('lost', 0)} lost")


class Gateway:
    """The bridge in a thread, for as long as the block lasts."""

    def __init__(self, bridge: MeshToMold) -> None:
        self._bridge = bridge
        self._over, self._open = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._bridge.run(lambda: not self._over.is_set(), lambda sender: self._open.set())

    def opened(self):
        """The sender, once there is something to send."""
        assert self._open.wait(10)
        return self._bridge.sender

    def __enter__(self) -> "Gateway":
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._over.set()
        self._thread.join()


if __name__ == "__main__":
    main()
