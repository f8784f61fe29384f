"""The durable log: the one core that touches disk, through `files`."""
