"""What was missed, kept, resent or redelivered: every such decision is made in this room.

Belongs here: sequence ranges, loss detection and the timing of NACKs, the retransmit buffer, flow
control, replay, cursors, group assignment and redelivery. Each is a core without I/O: bytes or
events go in, actions come out, `now` is a keyword float in seconds and randomness is a
`random.Random` that the caller passes in. The durable log (`log`) lives here too, as the one part
that touches disk; all it asks of a system goes through `log.files`, and a thread of it syncs.

Does not belong here: sockets, threads, clocks and logging (a transport or the peer brings them),
and anything a user types (that is the `meshmsg` package itself). Imports reach down to
`meshmsg._wire` and `meshmsg._model` and no further; import-linter holds this room to it.
"""
