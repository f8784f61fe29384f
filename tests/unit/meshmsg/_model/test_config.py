"""Configuration: what is taken, and that every refusal names its field and what would be right."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshmsg import Discovery, EventTooLarge, Record, Security
from meshmsg._access.key_files import new_folder
from meshmsg._model.codecs import MsgpackCodec
from meshmsg._model.config import (
    DURABILITY_WORDS,
    OVERFLOW_WORDS,
    PeerConfig,
    Stream,
    Tuning,
    config_from_tables,
    load_toml,
)
from meshmsg._model.errors import ConfigError, TopicError
from meshmsg._model.multicast_config import Feed, Multicast
from meshmsg._model.units import check_address, check_name, one_of, parse_size, parse_time

ROOT = Path(__file__).resolve().parents[4]

# Sizes and times -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (1, 1),
        (65536, 65536),
        ("65536", 65536),
        ("64B", 64),
        ("64kB", 64_000),
        ("64KB", 64_000),
        ("64k", 64_000),
        ("64KiB", 65_536),
        ("64Ki", 65_536),
        ("64MiB", 64 << 20),
        ("1.5GB", 1_500_000_000),
        ("2TB", 2 * 10**12),
        ("1TiB", 1 << 40),
        (" 2 GiB ", 2 << 30),
        ("0.5kB", 500),
    ],
)
def test_sizes_are_read(given: int | str, size: int) -> None:
    assert parse_size("buffer_bytes", given) == size


@pytest.mark.parametrize(
    "given",
    [
        0,
        -1,
        True,
        1.5,
        None,
        [],
        "",
        "MB",
        "-1",
        "1 2",
        "1e6",
        "64iB",
        "1PB",
        "0",
        "0.0001kB",
        "1kk",
        "inf",
        "nan",
        "9" * 400,
    ],
)
def test_what_is_no_size_is_refused_with_examples(given: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_size("buffer_bytes", given)
    assert refusal.value.field == "buffer_bytes"
    assert refusal.value.problem == f"{given!r} is not a size: write 65536, '64kB' or '64MiB'"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0),
        (2, 2.0),
        (0.5, 0.5),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        (" 3 s ", 3.0),
    ],
)
def test_times_are_read(given: float | str, seconds: float) -> None:
    assert parse_time("evict_after", given) == seconds


@pytest.mark.parametrize(
    "given", [-1, True, None, [], "", "s", "-1s", "1 2", "1e3", "1w", math.inf, math.nan, "9" * 400]
)
def test_what_is_no_time_is_refused_with_examples(given: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_time("evict_after", given)
    assert refusal.value.field == "evict_after"
    assert refusal.value.problem == f"{given!r} is not a time: write 0.5, '500ms' or '30s'"


def test_a_word_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(ConfigError, match="overflow: 'drop-oldest' is not one of block, buffer, "):
        one_of("overflow", "drop-oldest", OVERFLOW_WORDS)
    with pytest.raises(ConfigError, match=r"\(did you mean 'drop_oldest'\?\)"):
        one_of("overflow", "drop-oldest", OVERFLOW_WORDS)
    with pytest.raises(ConfigError, match=r"overflow: 7 is not one of .*spill$"):
        one_of("overflow", 7, OVERFLOW_WORDS)


# Names and addresses ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "pricing", "börse-1", "a.b", "x" * 128, "é" * 64, "a:b*"])
def test_names_are_taken(name: str) -> None:
    assert check_name("name", name) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "'' is not a name of 1 to 128 bytes"),
        (None, "None is not a name of 1 to 128 bytes"),
        (b"a", "b'a' is not a name of 1 to 128 bytes"),
        ("é" * 65, "is not a name of 1 to 128 bytes"),
        ("a b", "'a b' may not have spaces, '/', '@' or control characters"),
        ("a/b", "'a/b' may not have spaces"),
        ("a@b", "'a@b' may not have spaces"),
        ("a\0", "may not have spaces, '/', '@' or control characters"),
        ("a\n", "may not have spaces"),
        ("\ud800", "may not have spaces, '/', '@' or control characters"),
    ],
)
def test_what_is_no_name_is_refused(name: object, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_name("name", name)
    assert refusal.value.field == "name"
    assert problem in refusal.value.problem


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:7000", "tcp://*:*", "tcp://[::1]:0", "tcp://host:65535", "ipc:///tmp/x"],
)
def test_addresses_are_taken(address: str) -> None:
    assert check_address("bind", address) == address


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("", "is not an address: write tcp://127.0.0.1:7000 or ipc:///tmp/name"),
        ("127.0.0.1:7000", "is not an address"),
        ("udp://a:1", "is not an address"),
        ("tcp://", "is not an address"),
        ("tcp://host", "is not an address"),
        ("tcp://:7000", "is not an address"),
        ("ipc://", "is not an address"),
        (7000, "is not an address"),
        ("tcp://host:", "a port is a number up to 65535, or *"),
        ("tcp://host:65536", "a port is a number up to 65535, or *"),
        ("tcp://host:٣", "a port is a number up to 65535, or *"),
        ("tcp://host:7000/x", "a port is a number up to 65535, or *"),
    ],
)
def test_what_is_no_address_is_refused(address: object, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_address("bind", address)
    assert refusal.value.field == "bind"
    assert problem in refusal.value.problem


# Streams ---------------------------------------------------------------------------------------


def test_a_stream_needs_only_its_topics() -> None:
    stream = Stream("orders.**")
    assert (stream.label, stream.overflow, stream.durability) == ("orders.**", "buffer", "none")
    assert (stream.buffer_bytes, stream.window_bytes) == (64 << 20, 4 << 20)
    assert stream.event_bytes_max == 16 << 20
    assert stream.evict_after is None
    assert stream.pattern.matches("orders.eu")


def test_a_stream_reads_sizes_and_times_and_keeps_its_name() -> None:
    stream = Stream("a", name="n", buffer_bytes="1MiB", window_bytes="64kB", evict_after="2m")
    assert (stream.label, stream.buffer_bytes, stream.window_bytes) == ("n", 1 << 20, 64_000)
    assert stream.evict_after == 120.0


def test_a_stream_takes_any_codec_object() -> None:
    codec = MsgpackCodec()
    assert Stream("a", codec=codec).codec is codec


@pytest.mark.parametrize("word", OVERFLOW_WORDS)
def test_every_overflow_word_is_taken(word: str) -> None:
    assert Stream("a", overflow=word).overflow == word


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("topics", "a b", "has whitespace"),
        ("topics", "", "is empty"),
        ("topics", None, "is NoneType, not str"),
        ("name", "a/b", "may not have spaces, '/'"),
        ("overflow", "spil", "is not one of block, buffer, drop_oldest, drop_newest"),
        ("durability", "disk", f"is not one of {', '.join(DURABILITY_WORDS)}"),
        ("codec", "pickle", "is not one of msgpack, json"),
        ("codec", MsgpackCodec, "MsgpackCodec is a class: write MsgpackCodec()"),
        ("buffer_bytes", "lots", "is not a size"),
        ("buffer_bytes", 65535, "at least 64KiB"),
        ("window_bytes", 0, "is not a size"),
        ("event_bytes_max", -5, "is not a size"),
        ("event_bytes_max", "17MiB", "at most 16,777,216 bytes"),
        ("evict_after", "soon", "is not a time"),
        ("evict_after", math.inf, "is not a time"),
    ],
)
def test_stream_names_the_field_that_cannot_be_used(field: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Stream(**({"topics": "a"} | {field: value}))
    assert refusal.value.field.endswith(field)
    assert problem in refusal.value.problem


def test_a_bad_pattern_is_a_topic_error() -> None:
    with pytest.raises(TopicError):
        Stream("a..b")


# Tuning and peers ------------------------------------------------------------------------------


@pytest.mark.parametrize("item", dataclasses.fields(Tuning), ids=lambda item: item.name)
def test_every_constant_must_be_positive_and_a_number(item: dataclasses.Field[Any]) -> None:
    bad: list[Any] = [-1, "1", None, True, math.nan, math.inf]
    bad += [0] if item.name not in ("repair_delay_s", "spin_s") else []
    bad += [1.5] if item.type == "int" else []
    for value in bad:
        with pytest.raises(ConfigError) as refusal:
            Tuning(**{item.name: value})
        assert refusal.value.field == f"tuning.{item.name}"
        assert refusal.value.problem == f"{value!r} is not a positive {item.type}"


def test_constants_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tuning.heartbeat_min_s: is greater than"):
        Tuning(heartbeat_min_s=2.0, heartbeat_max_s=1.0)
    with pytest.raises(ConfigError, match=r"tuning.ping_interval_s: must be at most half of"):
        Tuning(ping_interval_s=3.0, peer_timeout_s=5.0)


def test_a_gap_may_be_asked_for_at_once() -> None:
    assert Tuning(repair_delay_s=0).repair_delay_s == 0


def test_a_peer_needs_only_its_name() -> None:
    config = PeerConfig("pricing")
    assert (config.streams, config.bind, config.connect) == ((), (), ())
    assert (config.mesh, config.interface, config.data_dir) == ("default", "127.0.0.1", None)
    assert config.tuning == Tuning()


def test_one_address_or_stream_may_stand_for_a_list_of_one() -> None:
    stream = Stream("a")
    config = PeerConfig("p", streams=stream, bind="tcp://*:*", connect=["tcp://h:1"])  # type: ignore[arg-type]
    assert (config.streams, config.bind, config.connect) == (
        (stream,),
        ("tcp://*:*",),
        ("tcp://h:1",),
    )


def test_a_path_may_stand_for_a_text() -> None:
    assert PeerConfig("p", data_dir=Path("data")).data_dir == "data"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("name", "", "is not a name of 1 to 128 bytes"),
        ("mesh", "a b", "may not have spaces"),
        ("bind", "localhost", "is not an address: write tcp://127.0.0.1:7000"),
        ("bind", 7000, "7000 is not an address or a list of addresses"),
        ("bind", ["tcp://a:1", 5], "5 is not an address"),
        ("bind", {"a": 1}, "is not an address or a list of addresses"),
        ("connect", "tcp://*:7000", "name the host and port to connect to"),
        ("connect", "tcp://host:*", "name the host and port to connect to"),
        ("connect", "tcp://host:0", "name the host and port to connect to"),
        ("streams", "orders.**", "write streams=[Stream('orders.**')]"),
        ("streams", ["orders.**"], "write streams=[Stream('orders.**')]"),
        ("streams", 5, "5 is not a Stream or a list of them"),
        ("streams", [Stream("a"), Stream("b", name="a")], "'a' stands twice: give one of them"),
        ("interface", "", "'' is not a text"),
        ("interface", None, "None is not a text"),
        ("data_dir", 5, "5 is not a text"),
        ("data_dir", "", "'' is not a text"),
        ("tuning", {"frame_bytes": 1}, "is not a Tuning"),
    ],
)
def test_peer_names_the_field_that_cannot_be_used(field: str, value: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        PeerConfig(**({"name": "p"} | {field: value}))
    assert refusal.value.field == field
    assert problem in refusal.value.problem


def test_an_ipc_path_may_look_like_a_port() -> None:
    assert PeerConfig("p", connect="ipc:///tmp/a:0").connect == ("ipc:///tmp/a:0",)  # type: ignore[arg-type]


def test_configuration_cannot_be_changed() -> None:
    for config in (PeerConfig("p"), Stream("a"), Tuning()):
        field = dataclasses.fields(config)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field, "x")


@pytest.mark.parametrize("kind", [Stream, Tuning, PeerConfig, Multicast, Feed])
def test_every_field_has_its_own_docstring(kind: type) -> None:
    """A string literal under each field, as the reference and `mesh.toml` readers need it."""
    source = Path(kind.__module__.replace(".", "/") + ".py")
    lines = (Path(__file__).resolve().parents[4] / source).read_text(encoding="utf-8").splitlines()
    start = lines.index(f"class {kind.__name__}:")
    for field in dataclasses.fields(kind):
        at = next(n for n in range(start, len(lines)) if lines[n].startswith(f"    {field.name}: "))
        assert lines[at + 1].startswith('    """'), field.name


# mesh.toml -------------------------------------------------------------------------------------

FULL = """
[peer]
name = "pricing"
bind = ["tcp://127.0.0.1:7000"]
connect = "tcp://127.0.0.1:7001"
interface = "127.0.0.1"
mesh = "prod"
data_dir = "./data"

[peer.tuning]
repair_deadline_s = 2
frame_bytes = 32768

[[stream]]
topics = "quotes.**"
overflow = "drop_oldest"

[[stream]]
topics = "orders.**"
name = "orders"
overflow = "block"
durability = "log"
fsync = "interval:50ms"
retention = "7d,10GB"
segment_bytes = "1MiB"
codec = "json"
buffer_bytes = "1MiB"
window_bytes = 65536
spill_bytes = "2MiB"
evict_after = "30s"
event_bytes_max = "1MB"
transport = "239.255.7.7:30001"
groups = ["workers"]
group_keep = "1h"

[[feed]]
publisher = "exchange"
topics = "trades.**"
transport = { group = "239.255.7.8:30011", ttl = 2 }
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mesh.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_mesh_toml_has_the_same_keys_as_the_classes(tmp_path: Path) -> None:
    config = load_toml(written(tmp_path, FULL))
    orders = Stream(
        "orders.**",
        name="orders",
        overflow="block",
        durability="log",
        fsync="interval:50ms",
        retention="7d,10GB",
        segment_bytes="1MiB",
        codec="json",
        buffer_bytes="1MiB",
        window_bytes=65536,
        spill_bytes="2MiB",
        evict_after="30s",
        event_bytes_max="1MB",
        transport=Multicast("239.255.7.7:30001"),
        groups=("workers",),
        group_keep="1h",
    )
    assert config == PeerConfig(
        "pricing",
        streams=(Stream("quotes.**", overflow="drop_oldest"), orders),
        bind=("tcp://127.0.0.1:7000",),
        connect=("tcp://127.0.0.1:7001",),
        mesh="prod",
        data_dir=str(tmp_path / "data"),
        feeds=(Feed("exchange", "trades.**", Multicast("239.255.7.8:30011", ttl=2)),),
        tuning=Tuning(repair_deadline_s=2, frame_bytes=32768),
    )


def test_every_field_of_a_stream_may_stand_in_mesh_toml() -> None:
    stands = {line.split(" = ")[0] for line in FULL.splitlines() if " = " in line}
    assert {field.name for field in dataclasses.fields(Stream)} <= stands


def test_mesh_toml_needs_only_a_name(tmp_path: Path) -> None:
    assert load_toml(written(tmp_path, "[peer]\nname = 'p'")) == PeerConfig("p")


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("", "[peer]", "is missing, or has no name: write [peer] and name = '...'"),
        ("[peer]", "[peer]", "is missing, or has no name"),
        ("peer = 5", "[peer]", "is missing, or has no name"),
        ("[peer]\nname = 5", "peer.name", "is not a name"),
        ("[peer]\nname = 'p'\nmehs = 'x'", "peer.mehs", "(did you mean 'mesh'?)"),
        ("[peer]\nname = 'p'\nbind = 7000", "peer.bind", "is not an address or a list"),
        ("[peer]\nname = 'p'\nstreams = []", "peer.streams", "is not a key here"),
        ("[peer]\nname = 'p'\n[peers]", "peers", "(did you mean 'peer'?)"),
        ("[peer]\nname = 'p'\ntuning = 5", "peer.tuning", "is not a table"),
        (
            "[peer]\nname = 'p'\n[peer.tuning]\nframe_byte = 1",
            "peer.tuning.frame_byte",
            "(did you mean 'frame_bytes'?)",
        ),
        (
            "[peer]\nname = 'p'\n[peer.tuning]\nframe_bytes = 0",
            "peer.tuning.frame_bytes",
            "0 is not a positive int",
        ),
        ("[peer]\nname = 'p'\n[stream]\ntopics = 'a'", "stream", "write [[stream]], with two"),
        ("[peer]\nname = 'p'\n[[stream]]", "stream[0].topics", "is missing"),
        (
            "[peer]\nname = 'p'\n[[stream]]\ntopics = 'a'\noverflo = 'block'",
            "stream[0].overflo",
            "(did you mean 'overflow'?)",
        ),
        (
            "[peer]\nname = 'p'\n[[stream]]\ntopics = 'a'\n[[stream]]\ntopics = 'b c'",
            "stream[1].topics",
            "has whitespace",
        ),
        (
            "[peer]\nname = 'p'\n[[stream]]\ntopics = 'a'\nname = 'b/c'",
            "stream[0].name",
            "may not have spaces, '/'",
        ),
        (
            "[peer]\nname = 'p'\n[[stream]]\ntopics = 'a'\nevict_after = 'soon'",
            "stream[0].evict_after",
            "is not a time",
        ),
        ("peer = [", None, "is not TOML: "),
    ],
)
def test_mesh_toml_errors_name_file_table_and_key(
    tmp_path: Path, text: str, field: str | None, problem: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        load_toml(path)
    assert refusal.value.field == (str(path) if field is None else f"{path}: {field}")
    assert problem in refusal.value.problem


def test_mesh_toml_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.toml: cannot be read: No such file"):
        load_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_toml(tmp_path)
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad.toml: is not TOML"):
        load_toml(tmp_path / "bad.toml")


def test_unknown_key_lists_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"peer.zzz: is not a key here: use name, bind, connect"):
        config_from_tables({"peer": {"name": "p", "zzz": 1}})


@pytest.mark.parametrize("words", [{"fsync": "always"}, {"retention": "7d"}])
def test_words_about_a_log_are_refused_where_there_is_none(words: dict[str, str]) -> None:
    """Who writes them counts on a log, and would find out after the crash that there was none."""
    with pytest.raises(ConfigError, match="durability='log'"):
        Stream("a", **words)  # type: ignore[arg-type]
    assert Stream("a", durability="log", **words)  # type: ignore[arg-type]


def test_paths_in_a_file_are_relative_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_folder(tmp_path / "etc" / "keys", "p", None)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "etc" / "mesh.toml"
    file.write_text("[peer]\nname='p'\ndata_dir='./data'\n[security]\nkey_dir='keys'\n")
    for given in (file, Path("etc/mesh.toml")):
        config = load_toml(given)
        assert config.data_dir is not None
        assert Path(config.data_dir).resolve() == tmp_path / "etc" / "data"
        assert config.security == Security(key_dir=str(Path(given).parent / "keys"))
    file.write_text("[peer]\nname='p'\ndata_dir='/var/lib/p'\n")
    assert load_toml(file).data_dir == "/var/lib/p"


def test_advice_for_an_event_that_is_too_large_can_be_followed() -> None:
    small = EventTooLarge("a", 2_000, 1_000)
    assert "raise the stream's event_bytes_max" in str(small)
    Stream("a", event_bytes_max=small.size_bytes)
    large = EventTooLarge("a", 17 << 20, 16 << 20)
    assert "raise" not in str(large)
    assert "split the event" in str(large)


DOCUMENTED = """
from meshmsg import Discovery, Record, Security, Stream

Stream("jobs.**", groups="workers")
Stream("jobs.**", groups=["workers"])
Stream("jobs.**", groups=("workers",))
Record("q.**", hold="table")
Record(["q.**"])
Discovery(seeds="tcp://mesh.prod.svc:7000", advertise=["tcp://10.0.0.7:7000"])
Security(mesh_key="...", plain="statsd", other_keys=["..."])
"""


def test_documented_calls_pass_a_strict_type_checker(tmp_path: Path) -> None:
    program = tmp_path / "documented.py"
    program.write_text(DOCUMENTED)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_one_and_several_are_the_same() -> None:
    assert Stream("a", groups="g") == Stream("a", groups=["g"])
    assert Record("q.**") == Record(["q.**"])
    assert Discovery(seeds="tcp://a:1").seeds == ("tcp://a:1",)
