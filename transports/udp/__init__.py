"""UDP: multicast sockets and the interfaces they use."""
