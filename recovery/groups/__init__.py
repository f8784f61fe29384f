"""Work groups: who gets an event, until it is settled."""
