"""How a peer finds others, as a user writes it."""

from __future__ import annotations

from typing import Any

import pytest

from meshmsg._model.discovery_config import PEERS_MAX, Discovery, check_target, named_mesh
from meshmsg._model.errors import ConfigError


def test_words_and_nothing_stand_for_settings() -> None:
    assert Discovery.of(None) == Discovery.of("auto") == Discovery()
    assert not Discovery.of("none").is_on
    assert Discovery.of("gossip").is_on
    assert Discovery.of("zeroconf").zeroconf is True
    own = Discovery(peers_max=5)
    assert Discovery.of(own) is own


@pytest.mark.parametrize("value", ["mdns", 5, True, ["auto"]])
def test_another_word_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Discovery.of(value)
    assert caught.value.field == "discovery"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("zeroconf", 1),
        ("gossip", None),
        ("seeds", "host:1"),
        ("seeds", "tcp://*:7000"),
        ("seeds", "tcp://host:*"),
        ("seeds", "tcp://host:0"),
        ("seeds", ["tcp://0.0.0.0:7000"]),
        ("advertise", "tcp://[::]:7000"),
        ("peers_max", 0),
        ("peers_max", PEERS_MAX + 1),
        ("peers_max", True),
        ("peers_max", 1.0),
        ("dial_timeout", 0),
        ("retry_max", "soon"),
        ("resolve_every", "0s"),
        ("forget_after", -1),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Discovery(**{field: value})
    assert caught.value.field == f"discovery.{field}"


def test_times_are_seconds_and_addresses_tuples() -> None:
    made = Discovery(seeds="tcp://a:1", advertise=["ipc://x"], forget_after="2m")
    assert (made.seeds, made.advertise) == (("tcp://a:1",), ("ipc://x",))
    assert (made.forget_after, made.dial_timeout) == (120.0, 2.0)


def test_seeds_alone_are_something_to_look_at() -> None:
    assert Discovery(zeroconf=False, gossip=False, seeds="tcp://a:1").is_on


def test_the_environment_gives_the_word_and_addresses() -> None:
    assert Discovery.from_env({}) == Discovery()
    assert Discovery.from_env({"MESHMSG_DISCOVERY": ""}) == Discovery()
    found = Discovery.from_env(
        {
            "MESHMSG_DISCOVERY": "gossip",
            "MESHMSG_SEEDS": " tcp://a:1  tcp://b:2 ",
            "MESHMSG_ADVERTISE": "tcp://me:3",
        }
    )
    assert (found.zeroconf, found.gossip) == (False, True)
    assert (found.seeds, found.advertise) == (("tcp://a:1", "tcp://b:2"), ("tcp://me:3",))
    with pytest.raises(ConfigError):
        Discovery.from_env({"MESHMSG_SEEDS": "nonsense"})


def test_the_mesh_is_the_callers_or_that_of_the_environment() -> None:
    assert named_mesh("default", {}) == "default"
    assert named_mesh("default", {"MESHMSG_MESH": "prod"}) == "prod"
    assert named_mesh("test", {"MESHMSG_MESH": "prod"}) == "test"
    assert named_mesh("default", {"MESHMSG_MESH": ""}) == "default"


def test_a_target_is_one_that_can_be_dialled() -> None:
    check_target("f", "ipc://*")
    check_target("f", "tcp://host:1")
    for address in ("tcp://*:1", "tcp://host:0", "tcp://host:*"):
        with pytest.raises(ConfigError, match="name the host and port"):
            check_target("f", address)
