"""ZeroMQ sockets: fan-out, the control channel, work queues, keys, connections."""
