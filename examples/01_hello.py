"""Two peers: one publishes, one subscribes.  No server in the middle."""

from meshmsg import Peer


def main() -> None:
    with (
        Peer("greeter") as greeter,  # listens on a free loopback port
        Peer("listener", connect=greeter.address) as listener,
        listener.subscribe("greetings.**") as events,
    ):
        # Once this returns, the subscriber misses nothing, the first event included.
        greeter.wait_for_subscribers("greetings.world", count=1, timeout=5)

        greeter.publish("greetings.world", {"text": "hello"})
        greeter.publish("greetings.world", {"text": "hello again"}, key="en")

        for _ in range(2):
            event = events.get(timeout=5)
            print(event.topic, event.data, "key:", event.key, "at", event.position)


if __name__ == "__main__":
    main()
