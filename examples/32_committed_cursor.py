"""A named consumer goes on where it committed, whoever was restarted meanwhile."""

import tempfile

from meshmsg import Peer, Stream

ORDERS = Stream("orders.**", durability="log")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for start in range(3):
            # Each time around, both sides are new: only their folders stay.
            with (
                Peer("shop", streams=[ORDERS], data_dir=f"{folder}/shop") as shop,
                Peer("audit", connect=shop.address, data_dir=f"{folder}/audit") as audit,
            ):
                shop.publish_many("orders.eu", [f"order {start}.{n}" for n in range(5)])
                print(f"start {start}: {read_some(audit)}")


def read_some(audit: Peer) -> list[str]:
    """Handle four events, and commit after each."""
    handled = []
    with audit.subscribe("orders.**", start="committed", name="audit") as events:
        for event in events:
            handled.append(event.data)
            events.commit()  # all up to and with this one is done
            if len(handled) == 4:
                return handled


if __name__ == "__main__":
    main()
