"""What is kept of a peer that dialled us."""

from __future__ import annotations

from meshmsg._links.inbound_peer import Client
from meshmsg._wire.control import Hello


def test_peer_is_taken_down_as_it_says_and_as_it_is_seen() -> None:
    hello = Hello("far", 200, "default", listen=["tcp://10.0.0.1:1"], nonce=b"n" * 16)
    client = Client(hello, "10.9.9.9", b"user", 5.0)
    assert (client.peer, client.instance, client.nonce) == ("far", 200, b"n" * 16)
    assert (client.host, client.user, client.last_seen) == ("10.9.9.9", b"user", 5.0)
    assert not client.greeted  # until it has shown its card
