"""A recorder lends what its key may publish, by all that is known of a stream's topics."""

from __future__ import annotations

import pytest

from meshmsg._access import known_streams
from meshmsg._access.allow_list import Grant
from meshmsg._access.known_streams import Declared
from meshmsg._wire.control import StreamInfo


def info(name: str, topics: str) -> StreamInfo:
    return StreamInfo(name, topics, 1, "block", "msgpack", 1)


def lent(declared: Declared, publish: tuple[str, ...], *infos: StreamInfo) -> list[str]:
    return [one.name for one in declared.may_lend(Grant("r", b"k", publish), infos)]


def test_a_stream_is_lent_by_who_might_publish_it() -> None:
    streams = [info("pub/orders", "orders.**"), info("pub/quotes", "quotes.**")]
    assert lent(Declared(), ("orders.**",), *streams) == ["pub/orders"]
    assert lent(Declared(), ("**",), *streams) == ["pub/orders", "pub/quotes"]
    assert lent(Declared(), (), *streams) == []


def test_what_its_publisher_declares_counts_beside_what_the_recorder_says() -> None:
    declared = Declared()
    assert declared.learn([info("pub/orders", "orders.**")])
    # It says that the stream has other topics, which it may publish.
    assert lent(declared, ("chat.**",), info("pub/orders", "chat.**")) == []
    assert lent(declared, ("chat.**", "orders.**"), info("pub/orders", "chat.**"))


def test_a_stream_without_a_name_of_its_own_is_named_by_its_topics() -> None:
    assert lent(Declared(), ("chat.**",), info("pub/orders.**", "chat.**")) == []
    assert lent(Declared(), ("chat.**",), info("pub/chat.**", "chat.**")) == ["pub/chat.**"]
    # A name without a star says nothing of topics.
    assert lent(Declared(), ("chat.**",), info("pub/orders", "chat.**")) == ["pub/orders"]


def test_only_what_is_new_or_different_is_news() -> None:
    declared = Declared()
    orders = info("pub/orders", "orders.**")
    assert declared.learn([orders])
    assert not declared.learn([orders])
    assert not declared.learn([])
    assert declared.learn([orders, info("pub/quotes", "quotes.**")])
    assert declared.learn([info("pub/orders", "**")])
    assert lent(declared, ("orders.**",), orders) == []


def test_no_number_of_streams_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_streams, "STREAMS_MAX", 2)
    declared = Declared()
    declared.learn([info("pub/a", "a.**"), info("pub/b", "b.**")])
    declared.learn([info("pub/c", "c.**")])
    # Those of before are forgotten: what the recorder says of them is all that is known.
    assert lent(declared, ("chat.**",), info("pub/a", "chat.**"), info("pub/c", "chat.**")) == [
        "pub/a"
    ]
