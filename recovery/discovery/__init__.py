"""Which peers there are, which are dialled, and what is told of others."""
