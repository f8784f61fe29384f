"""Work groups, both ends: the consumer in one peer, the dispatcher in the publisher."""
