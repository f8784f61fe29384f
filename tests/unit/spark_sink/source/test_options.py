"""Options of the Spark source, right and wrong."""

from __future__ import annotations

import pytest

from meshmsg import ConfigError
from meshmsg.spark_sink.source.options import Options, Place, parse_options


def test_defaults_read_all_that_is_there() -> None:
    assert parse_options({"path": "/data"}) == Options(path="/data")


def test_names_are_taken_in_any_case() -> None:
    options = parse_options(
        {"PATH": "file:///data", "failonloss": "FALSE", "maxeventspertrigger": "7"}
    )
    assert (options.path, options.fail_on_loss, options.events_max) == ("/data", False, 7)


def test_times_are_iso_or_seconds() -> None:
    for text in ("2023-11-14T22:13:20Z", "2023-11-14 22:13:20", "1700000000", "1700000000.0"):
        found = parse_options({"path": "d", "startingPosition": text}).start
        assert found == Place(time_ns=1_700_000_000 * 10**9)


def test_peers_are_addresses() -> None:
    options = parse_options({"peers": "tcp://a:1, tcp://b:2", "peerTimeout": "5s"})
    assert options.peers == ("tcp://a:1", "tcp://b:2")
    assert options.peer_timeout_s == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option path: give the folder of the logs, or option peers"),
        ({"path": "s3://b/c"}, "option path: 's3://b/c': logs are read from a folder"),
        ({"path": "file://far/c"}, "option path: 'file://far/c' is on host far: for a folder here"),
        ({"path": "d", "topic": "a"}, "did you mean topics"),
        ({"path": "d", "zzz": "a"}, "is not known to format meshmsg; there are topics, path"),
        ({"path": "d", "topics": " "}, "option topics: is empty"),
        ({"path": "d", "topics": "a..b"}, "option topics: .* has an empty level"),
        ({"path": "d", "startingPosition": "soon"}, "'soon' is not 'earliest', 'latest', a time"),
        ({"path": "d", "startingPosition": "2023-13-99"}, "is not a time"),
        ({"path": "d", "endingPosition": "earliest"}, "would read nothing"),
        ({"path": "d", "payload": "avro"}, "is not one of binary, json, variant, and not columns"),
        ({"path": "d", "failOnLoss": "maybe"}, "'maybe' is not one of true, false"),
        ({"path": "d", "rows": "some"}, "'some' is not one of events, losses, all"),
        ({"path": "d", "maxEventsPerTrigger": "0"}, "is not a whole number from 1 on"),
        ({"path": "d", "maxEventsPerTrigger": "1e6"}, "is not a whole number from 1 on"),
        ({"path": "d", "partitions": "-1"}, "is not a whole number from 1 on"),
        ({"peers": "there:5"}, "option peers: 'there:5' is not an address"),
        ({"path": "d", "peerTimeout": "long"}, "option peerTimeout"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_options(given)


def test_a_regular_expression_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    parse_options({"path": "/logs", "topics": "orders-.*,quotes.**"})
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("option topics: 'orders-.*': is not taken for a regular expression")
