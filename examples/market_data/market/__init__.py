"""A market to try meshmsg on: an exchange that trades by a seed, feed handlers, risk, bars.

Belongs here: what the demo and the programs beside this folder share. Prices have four decimals, as
in ITCH (`10_000` is one dollar); times are nanoseconds since midnight.

| module | holds |
|---|---|
| `book` | an order book: orders by price and time, and a hash of it |
| `simulator` | the exchange: orders come, match and go, by a seed |
| `arrivals` | when something happens: bursts, and busy and quiet symbols |
| `bars` | one-second bars from trades |
| `exchange` | its streams, and how a tick of the simulator is published |
| `handler` | books rebuilt from the feed, kept on disk, and checked |
| `risk` | exposure by account, worked on by a group |
| `follow` | the feed into a handler's books, from the mesh or from MoldUDP64 |
| `demo` | all of it at once: what `make demo` runs |
"""
