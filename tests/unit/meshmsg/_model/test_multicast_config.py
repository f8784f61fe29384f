"""`Multicast` and `Feed`: what is taken; every refusal names its field and what would be right."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from meshmsg import ConfigError, Feed, Multicast, PeerConfig, Stream, TopicError
from meshmsg._model.config import config_from_tables
from meshmsg._model.multicast_config import FLOW_WORDS, split_group
from meshmsg._receive.multicast_receiver import info_of
from meshmsg._wire.control import decode_message, encode_message
from meshmsg._wire.multicast_info import MulticastInfo
from tests.unit.meshmsg._wire.test_control import enclosed, welcome_with

GROUP = "239.255.7.7:30001"
GROUP_6 = "[ff12::7:7]:30001"
LINE = Multicast(GROUP)
TIMES = [
    "repair_age",
    "nack_delay",
    "nack_backoff",
    "nack_retry",
    "nack_deadline",
    "linger",
    "heartbeat_min",
    "heartbeat_max",
    "status_interval",
    "receiver_timeout",
]
MAY_BE_ZERO = ("nack_delay", "nack_backoff", "linger")


def refused(kind: type, **fields: Any) -> ConfigError:
    """The error that these fields give."""
    with pytest.raises(ConfigError) as refusal:
        kind(**fields)
    return refusal.value


# Groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (GROUP, ("239.255.7.7", 30001)),
        ("224.0.0.1:1", ("224.0.0.1", 1)),
        (GROUP_6, ("ff12::7:7", 30001)),
        ("[FF12:0:0::7:7]:65535", ("ff12::7:7", 65535)),
    ],
)
def test_groups_are_read(text: str, address: tuple[str, int]) -> None:
    assert split_group("group", text) == address


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "None is not a multicast group"),
        (30001, "30001 is not a multicast group"),
        ("", "'' is not a multicast group"),
        ("239.255.7.7", "is not a multicast group"),
        ("group:30001", "is not a multicast group"),
        ("239.255.7:30001", "is not a multicast group"),
        ("239.255.7.7:", "has no port from 1 to 65535"),
        ("239.255.7.7:0", "has no port from 1 to 65535"),
        ("239.255.7.7:65536", "has no port from 1 to 65535"),
        ("239.255.7.7:x", "has no port from 1 to 65535"),
        ("239.255.7.7:٣", "has no port from 1 to 65535"),
        ("127.0.0.1:30001", "127.0.0.1 is not a multicast address"),
        ("[::1]:30001", "::1 is not a multicast address"),
    ],
)
def test_what_is_no_group_is_refused_with_examples(text: Any, problem: str) -> None:
    for field in ("group", "second"):
        error = refused(Multicast, **({"group": GROUP} | {field: text or ""}))
        assert error.field == field
    error = refused(Multicast, group=text)
    assert problem in error.problem
    assert "write a group and a port: 239.255.7.7:30001 or [ff12::7:7]:30001" in error.problem


# Multicast -------------------------------------------------------------------------------------


def test_a_transport_needs_only_its_group() -> None:
    assert LINE.address == ("239.255.7.7", 30001)
    assert LINE.request_port == 30002
    assert (LINE.rate, LINE.repair_rate, LINE.receive_buffer) == (10**8, 5 * 10**7, 8 << 20)
    assert (LINE.nack_delay, LINE.nack_backoff, LINE.linger) == pytest.approx(
        (0.0002, 0.002, 0.005)
    )
    assert (LINE.flow, LINE.ttl, LINE.parity, LINE.interface) == (None, None, None, None)


def test_a_packet_fills_the_mtu_of_its_ip_version() -> None:
    assert LINE.packet_bytes == 1500 - 28
    assert Multicast(GROUP_6).packet_bytes == 1500 - 48
    assert Multicast(GROUP, mtu=65535).packet_bytes < 65507, "what UDP can carry at all"
    assert Multicast(GROUP, mtu=576).packet_bytes == 576 - 28


@pytest.mark.parametrize("word", FLOW_WORDS)
def test_every_flow_word_is_taken(word: str) -> None:
    assert Multicast(GROUP, flow=word).flow == word


@pytest.mark.parametrize("given", ["16+2", " 16 + 2 ", (16, 2), [16, 2]])
def test_parity_is_read(given: Any) -> None:
    assert Multicast(GROUP, parity=given).parity == (16, 2)
    assert Multicast(GROUP, parity="128+64").parity == (128, 64)


def test_two_lines_may_share_a_port_or_a_group() -> None:
    assert Multicast(GROUP, second="239.255.7.8:30001").request_port == 30002
    assert Multicast(GROUP, second="239.255.7.7:30011").request_port == 30002
    assert Multicast(GROUP, second=GROUP, second_interface="eth1").second == GROUP


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("interface", "", "'' is not a text"),
        ("interface", 5, "5 is not a text"),
        ("second_interface", b"eth0", "is not a text"),
        ("ttl", -1, "-1 is not a whole number from 0 to 255"),
        ("ttl", 256, "is not a whole number from 0 to 255"),
        ("ttl", True, "True is not a whole number from 0 to 255"),
        ("ttl", 1.0, "is not a whole number from 0 to 255"),
        ("second", GROUP_6, "both groups are of one IP version"),
        ("second", GROUP, "is the first line again: give another group or interface"),
        ("second", "239.255.7.7:30002", "port 30002 is for requests: choose another"),
        ("second", "239.255.7.8:30002", "port 30002 is for requests: choose another"),
        ("request_port", 0, "0 is not a whole number from 1 to 65535"),
        ("request_port", "30002", "'30002' is not a whole number from 1 to 65535"),
        ("request_port", 30001, "must not be the group's own port"),
        ("mtu", 575, "575 is not a whole number from 576 to 65535"),
        ("mtu", "1500", "is not a whole number from 576 to 65535"),
        ("flow", "slow", "is not one of rate, fastest, slowest (did you mean 'slowest'?)"),
        ("flow", 5, "is not one of rate, fastest, slowest"),
        ("rate", 0, "0 is not a size"),
        ("rate", "fast", "'fast' is not a size: write 65536, '64kB' or '64MiB'"),
        ("repair_rate", None, "None is not a size"),
        ("receive_buffer", -1, "-1 is not a size"),
        ("receive_buffer", "2GiB", "must be at most 2,147,483,647 bytes"),
        ("status_interval", "0.5ms", "must be at least 1ms"),
        ("parity", "16", "'16' is not data + parity packets: write '16+2', up to 128+64"),
        ("parity", "16+0", "write '16+2'"),
        ("parity", "129+2", "up to 128+64"),
        ("parity", "16+65", "up to 128+64"),
        ("parity", "a+b", "write '16+2'"),
        ("parity", (16, 2, 1), "write '16+2'"),
        ("parity", (16.0, 2), "write '16+2'"),
        ("parity", 16, "write '16+2'"),
        ("heartbeat_min", "2s", "is greater than heartbeat_max"),
    ],
)
def test_transport_names_the_field_that_cannot_be_used(
    field: str, value: Any, problem: str
) -> None:
    error = refused(Multicast, **({"group": GROUP} | {field: value}))
    assert error.field == field
    assert problem in error.problem


@pytest.mark.parametrize("name", TIMES)
def test_every_time_is_checked(name: str) -> None:
    for bad in ("soon", -1, None, math.nan, math.inf, True):
        error = refused(Multicast, group=GROUP, **{name: bad})
        assert error.field == name
        assert "is not a time: write 0.5, '500ms' or '30s'" in error.problem
    error = refused(Multicast, group=GROUP, **{name: "25h"})
    assert (error.field, error.problem) == (name, "must be at most a day")
    if name in MAY_BE_ZERO:
        assert getattr(Multicast(GROUP, **{name: 0}), name) == 0  # type: ignore[arg-type]
    else:
        error = refused(Multicast, group=GROUP, **{name: 0})
        assert (error.field, error.problem) == (name, "must be more than 0")


def test_no_field_is_left_out_of_the_tests_of_bad_values() -> None:
    marks = test_transport_names_the_field_that_cannot_be_used.pytestmark  # type: ignore[attr-defined]
    tested = {case[0] for case in marks[0].args[1]} | set(TIMES) | {"group"}
    assert tested == {field.name for field in dataclasses.fields(Multicast)}


def test_the_last_port_needs_a_request_port() -> None:
    error = refused(Multicast, group="239.255.7.7:65535")
    assert (error.field, error.problem) == (
        "group",
        "port 65535 has no next one: give a request_port",
    )
    assert Multicast("239.255.7.7:65535", request_port=1).request_port == 1


def test_whatever_is_taken_can_be_announced() -> None:
    """A receiver refuses figures out of limits, so the publisher must not be able to set them."""
    widest = Multicast(
        GROUP,
        second="239.255.7.8:30001",
        mtu=576,
        parity="1+1",
        receive_buffer=(1 << 31) - 1,
        **dict.fromkeys(TIMES, 86_400),  # type: ignore[arg-type]
    )
    least = dict.fromkeys(MAY_BE_ZERO, 0) | {"status_interval": "1ms", "receive_buffer": 1}
    for config in (LINE, widest, Multicast(GROUP_6, mtu=65535, **least)):  # type: ignore[arg-type]
        info = info_of(config, [("127.0.0.1", 5)])
        body = welcome_with(**msgspec.to_builtins(info))
        message = decode_message(enclosed(body))
        assert decode_message(encode_message(message)) == message
        assert message.streams[0].multicast == info  # type: ignore[union-attr]
        assert isinstance(info, MulticastInfo)


# Feed ------------------------------------------------------------------------------------------


def test_a_feed_names_its_stream_as_the_publisher_does() -> None:
    assert Feed("pricing", "quotes.**", LINE).stream == "pricing/quotes.**"
    assert Feed("pricing", "quotes.**", LINE, name="quotes").stream == "pricing/quotes"
    assert Feed("pricing", "quotes.**", LINE).pattern.text == "quotes.**"


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("publisher", "", "is not a name of 1 to 128 bytes"),
        ("publisher", "a/b", "may not have spaces, '/'"),
        ("topics", "a b", "has whitespace"),
        ("topics", None, "is NoneType, not str"),
        ("transport", GROUP, "write Multicast('239.255.7.7:30001')"),
        ("transport", None, "write Multicast('239.255.7.7:30001')"),
        ("name", "a b", "may not have spaces"),
        ("name", "", "is not a name of 1 to 128 bytes"),
        ("codec", "pickle", "is not one of msgpack, json"),
    ],
)
def test_feed_names_the_field_that_cannot_be_used(field: str, value: Any, problem: str) -> None:
    good = {"publisher": "pricing", "topics": "quotes.**", "transport": LINE}
    error = refused(Feed, **(good | {field: value}))
    assert error.field == field
    assert problem in error.problem


def test_a_bad_pattern_of_a_feed_is_a_topic_error() -> None:
    with pytest.raises(TopicError):
        Feed("pricing", "a..b", LINE)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5, "5 is not a Feed or a list of them: write feeds=[Feed('pricing', 'quotes.**', ...)]"),
        ("pricing", "is not a Feed or a list of them"),
        ([LINE], "is not a Feed or a list of them"),
        ([Feed("p", "a", LINE), Feed("p", "b", LINE, name="a")], "'p/a' stands twice"),
    ],
)
def test_peer_names_what_is_wrong_with_its_feeds(value: Any, problem: str) -> None:
    error = refused(PeerConfig, name="p", feeds=value)
    assert error.field == "feeds"
    assert problem in error.problem


def test_one_feed_may_stand_for_a_list_of_one() -> None:
    feed = Feed("pricing", "quotes.**", LINE)
    assert PeerConfig("p", feeds=feed).feeds == (feed,)  # type: ignore[arg-type]


def test_configuration_cannot_be_changed() -> None:
    for config in (LINE, Feed("pricing", "quotes.**", LINE)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, dataclasses.fields(config)[0].name, "x")


# In a stream, and in mesh.toml -----------------------------------------------------------------


@pytest.mark.parametrize("value", [GROUP, "zmq", 5, {"group": GROUP}])
def test_a_stream_names_a_transport_that_cannot_be_used(value: Any) -> None:
    error = refused(Stream, topics="a", transport=value)
    assert error.field == "transport"
    assert "write Multicast('239.255.7.7:30001'), or leave it out for ZeroMQ" in error.problem


def tables(stream: dict[str, Any] | None = None, feed: dict[str, Any] | None = None) -> PeerConfig:
    """A peer of these tables of a mesh.toml."""
    made: dict[str, Any] = {"peer": {"name": "p"}}
    if stream is not None:
        made["stream"] = [{"topics": "a"} | stream]
    if feed is not None:
        made["feed"] = [{"publisher": "p", "topics": "a", "transport": GROUP} | feed]
    return config_from_tables(made)


def test_transport_is_a_group_or_a_table_in_mesh_toml() -> None:
    assert tables({"transport": GROUP}).streams == (Stream("a", transport=LINE),)
    settings = {"group": GROUP, "ttl": 4, "parity": [16, 2], "nack_delay": "2ms", "rate": "1GB"}
    expected = Multicast(GROUP, ttl=4, parity="16+2", nack_delay=0.002, rate=10**9)
    assert tables({"transport": settings}).streams[0].transport == expected
    assert tables(feed={"transport": settings}).feeds == (Feed("p", "a", expected),)


def test_every_field_of_a_feed_may_stand_in_mesh_toml() -> None:
    config = tables(feed={"name": "b", "codec": "json"})
    assert config.feeds == (Feed("p", "a", LINE, name="b", codec="json"),)


@pytest.mark.parametrize(
    ("stream", "feed", "field", "problem"),
    [
        ({"transport": 5}, None, "stream[0].transport", "is not a table"),
        ({"transport": {}}, None, "stream[0].transport.group", "is missing"),
        ({"transport": "here"}, None, "stream[0].transport.group", "write a group and a port"),
        (
            {"transport": {"group": GROUP, "tll": 1}},
            None,
            "stream[0].transport.tll",
            "(did you mean 'ttl'?)",
        ),
        (
            {"transport": {"group": GROUP, "parity": "16"}},
            None,
            "stream[0].transport.parity",
            "write '16+2'",
        ),
        (None, {"publisher": "a b"}, "feed[0].publisher", "may not have spaces"),
        (None, {"stream": "x"}, "feed[0].stream", "is not a key here"),
        (None, {"transport": "127.0.0.1:1"}, "feed[0].transport.group", "is not a multicast"),
    ],
)
def test_mesh_toml_errors_name_table_and_key(
    stream: dict[str, Any] | None, feed: dict[str, Any] | None, field: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        tables(stream, feed)
    assert refusal.value.field == field
    assert problem in refusal.value.problem


def test_feeds_need_two_brackets_and_their_transport() -> None:
    peer = {"name": "p"}
    with pytest.raises(ConfigError, match=r"feed: write \[\[feed\]\], with two brackets"):
        config_from_tables({"peer": peer, "feed": {"publisher": "p"}})
    with pytest.raises(ConfigError, match=r"feed\[0\].transport: is missing"):
        config_from_tables({"peer": peer, "feed": [{"publisher": "p", "topics": "a"}]})
