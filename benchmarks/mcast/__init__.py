"""The benchmark of the multicast transport: see `command`."""
