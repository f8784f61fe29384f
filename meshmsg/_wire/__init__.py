"""Bytes: frames, packets and control messages, built and read.

Belongs here: what docs/wire-format.md specifies.  Does not belong here: when a message is sent, and
what is believed of one that came.
"""
