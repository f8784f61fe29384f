"""Typed events: publish msgspec Structs, and have payloads checked when they are read."""

import msgspec

from meshmsg import PayloadError, Peer


def main() -> None:
    with (
        Peer("shop") as shop,
        Peer("billing", connect=shop.address) as billing,
        billing.subscribe("orders.**", type=Order) as events,
    ):
        shop.wait_for_subscribers("orders.eu", timeout=5)
        shop.publish("orders.eu", Order(7, "ACME", 100))
        shop.publish("orders.eu", {"id": 8, "symbol": "ACME"})  # a dict of the same shape
        shop.publish("orders.eu", {"id": "nine"})  # not an order

        for _ in range(3):
            event = events.get(timeout=5)
            try:
                order = event.data
                print("order", order.id, "of", order.quantity, order.symbol)
            except PayloadError as error:
                print("not an order:", error)
                print("its payload:", event.payload)


class Order(msgspec.Struct):
    """What an order is; a field without a value takes the default."""

    id: int
    symbol: str
    quantity: int = 1


if __name__ == "__main__":
    main()
