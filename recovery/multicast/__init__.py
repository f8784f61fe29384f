"""Multicast: packets, repair by NACK, parity, pacing, seals."""
