"""From `publish()` to a socket: streams, subscribers, backpressure, the durable log, multicast."""
