"""Finding peers on a network: multicast DNS, names and addresses."""
