"""A platform without an operating system: peers, their network, disks and clock under one seed.

`platform` joins the parts.  `scheduler` has the clock and decides whose turn it is, `locks` wait by
it, `network` carries bytes between machines.  What ZeroMQ and UDP are to a peer is in `control`,
`fanout`, `work` and `multicast`.
"""
