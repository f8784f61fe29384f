"""Test your own program under loss: a seed decides what is lost, the same each time."""

from contextlib import contextmanager

from meshmsg import Peer
from meshmsg.testing import LossyLink, lose_frames, lose_messages, own_mesh


def main() -> None:
    for seed in range(3):
        test_total_is_right_when_frames_are_lost(seed)
    test_last_event_is_found_after_an_outage()
    test_same_seed_loses_the_same_messages()
    print("all tests passed")


def total(events, count: int) -> int:
    """The program under test."""
    return sum(events.get(timeout=5).data for _ in range(count))


def test_total_is_right_when_frames_are_lost(seed: int) -> None:
    with two_peers() as (sender, events), lose_frames(sender, ratio=0.3, seed=seed) as link:
        for n in range(200):
            sender.publish_many("numbers", [n])  # a frame for each call
        assert total(events, 200) == sum(range(200))
        print(f"seed {seed}: {link.dropped} of {link.dropped + link.passed} messages lost")


def test_last_event_is_found_after_an_outage() -> None:
    with two_peers() as (sender, events):
        with lose_messages(sender, lambda message: True):  # nothing gets through, heartbeats too
            sender.publish("numbers", 42)
            sender.flush(timeout=5)  # comes back: the peers also talk beside the data path
        assert total(events, 1) == 42
        print("outage: the last event was found missing, and repaired")


def test_same_seed_loses_the_same_messages() -> None:
    messages = [bytes(8) + b"MMF1" + bytes([n]) for n in range(100)]
    first, second = LossyLink(0.5, seed=1), LossyLink(0.5, seed=1)
    assert [first(message) for message in messages] == [second(message) for message in messages]


@contextmanager
def two_peers():
    """In a test suite this would be a fixture: a mesh of its own, free ports, closed at the end."""
    with (
        own_mesh(),
        Peer("sender") as sender,
        Peer("receiver", connect=sender.address) as receiver,
        receiver.subscribe("**") as events,
    ):
        sender.wait_for_subscribers("numbers", timeout=5)
        yield sender, events


if __name__ == "__main__":
    main()
