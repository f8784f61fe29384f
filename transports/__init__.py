"""How bytes travel between peers: every socket is opened in this room.

Belongs here: ZeroMQ fan-out and work queues, UDP multicast, the control channel, the in-memory
transport with its seeded losses, and discovery. A transport reads, feeds a core, drains it, sends,
and sets the next timer.

Does not belong here: decisions. What counts as lost, what is kept, what is sent again and who gets
it are for `meshmsg.recovery` to say; what the user sees is for the peer. Imports reach down to
`meshmsg.recovery`, `meshmsg._wire` and `meshmsg._model`; nothing here knows the peer or the command
line. import-linter holds this room to it.
"""
