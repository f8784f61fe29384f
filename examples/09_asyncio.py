"""The same verbs in asyncio: `async with`, `await`, `async for`."""

import asyncio

from meshmsg import AsyncPeer

COUNT = 1000


async def main() -> None:
    async with (
        AsyncPeer("pricing") as pricing,
        AsyncPeer("dashboard", connect=pricing.address) as dashboard,
        dashboard.subscribe("quotes.**") as events,
    ):
        await pricing.wait_for_subscribers("quotes.AAPL", timeout=5)
        producer = asyncio.create_task(produce(pricing))
        total = 0
        async for event in events:
            total += event.data["size"]
            if event.data["last"]:
                break
        await producer
        print(f"{COUNT} quotes, total size {total}")


async def produce(peer: AsyncPeer) -> None:
    """A task beside the one that reads; neither holds up the loop."""
    for n in range(COUNT):
        await peer.publish("quotes.AAPL", {"size": n, "last": n == COUNT - 1})


if __name__ == "__main__":
    asyncio.run(main())
