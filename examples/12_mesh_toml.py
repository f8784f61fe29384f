"""Configuration in a file: `mesh.toml` has the same keys as the Python classes."""

from pathlib import Path

from meshmsg import ConfigError, NoStream, Peer

HERE = Path(__file__).parent


def main() -> None:
    with (
        Peer.from_toml(HERE / "mesh.toml") as exchange,
        Peer("desk", connect=exchange.address) as desk,
        desk.subscribe("**") as events,
    ):
        events.wait_for_publishers(count=2, timeout=5)
        for name, stream in exchange.stats()["streams"].items():
            print(f"{exchange.name} has stream {name!r} with overflow={stream['overflow']}")

        exchange.wait_for_subscribers("orders.eu", timeout=5)
        position = exchange.publish("orders.eu", {"id": 7})
        print("published at", position)
        print("received", events.get(timeout=5))

        # A topic that no declared stream takes is an error, not a new stream.
        try:
            exchange.publish("weather.berlin", "rain")
        except NoStream as error:
            print("refused:", error)

    try:
        Peer.from_toml(HERE / "missing.toml")
    except ConfigError as error:
        print(f"a mistake is named: {Path(error.field).name}", error.problem)


if __name__ == "__main__":
    main()
