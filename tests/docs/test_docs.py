"""What the pages say is so: quotes, links, settings, names, bytes, counters and commands."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import meshmsg
import meshmsg.testing
from meshmsg import Discovery, Feed, Multicast, Peer, PeerConfig, Stream, Tuning
from meshmsg._model.config import config_from_tables
from meshmsg._model.event import LOSS_REASONS
from meshmsg._model.message_fields import NACK_RANGES_MAX
from meshmsg._wire import control
from meshmsg._wire import frame as frames
from meshmsg._wire import frame_layout as layout
from meshmsg._wire import subframe as subframes
from meshmsg._wire.multicast_info import MulticastInfo
from tests import rooms
from tests.docs.signatures import spelled
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: At most so many characters in a line of prose.
PROSE_WIDTH = 110


def load_refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_refresh", DOCS / "refresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


refresh = load_refresh()
PAGES: list[Path] = [*refresh.pages(), ROOT / "examples" / "README.md"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def block_after(text: str, marker: str) -> str:
    """The code block that follows a marker."""
    found = re.search(rf"<!-- {marker} -->\n```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found, f"no <!-- {marker} --> with a code block"
    return found[1]


def section(text: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    start = re.search(rf"^{re.escape(heading)}$", text, re.MULTILINE)
    assert start, f"no heading {heading!r}"
    rest = text[start.end() :]
    end = re.search(rf"^#{{1,{level}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def tables(text: str) -> list[list[str]]:
    """The first column of each table, without its head, as the texts between backticks."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
        found.append([name for cell in cells for name in re.findall(r"`([^`]+)`", cell)])
    return found


# Quotes and links ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", refresh.pages(), ids=name_of)
def test_quotes_are_up_to_date(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == refresh.refreshed(text), "run: python docs/refresh.py"


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_page_opens_with_a_program_that_is_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    first = re.search(r"(<!-- .* -->)\n```", text)
    assert first, "no code block with a marker"
    assert first[1].startswith(("<!-- from examples/", "<!-- session -->"))
    assert "\n## " not in text[: first.start()], "the program stands at the top"


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_relative_links_lead_somewhere(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        if not other.exists() or (anchor and anchor not in anchors(other)):
            broken.append(target)
    assert broken == []


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in headings}


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if path.parent.name != "benchmarks"]  # `make bench` writes those
    + [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"],
    ids=name_of,
)
def test_prose_wraps_at_one_width(path: Path) -> None:
    fences = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
    lines = fences.sub("", path.read_text(encoding="utf-8")).splitlines()
    prose = [line for line in lines if not line.startswith(("|", "    ", "<"))]
    long = [line for line in prose if len(line) > PROSE_WIDTH and can_be_wrapped(line)]
    assert long == []


def can_be_wrapped(line: str) -> bool:
    """A line that is more than one piece of code."""
    return " " in re.sub(r"`[^`]*`", "``", line).strip(" -")


def test_every_page_is_in_the_index() -> None:
    index = page("index.md")
    names = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert [name for name in names if name != "index.md" and name not in index] == []


@pytest.mark.parametrize(
    ("picture", "where"), [("architecture.svg", "index.md"), ("repair.svg", "multicast.md")]
)
def test_picture_is_in_its_page_and_well_formed(picture: str, where: str) -> None:
    from xml.etree import ElementTree

    assert f"({picture})" in page(where)
    assert ElementTree.parse(DOCS / picture).getroot().tag.endswith("svg")


# Configuration ---------------------------------------------------------------------------------


def test_full_mesh_toml_has_every_key_and_is_accepted() -> None:
    tables = tomllib.loads(block_after(page("configuration.md"), "full"))
    config = config_from_tables(tables)
    peer = {field.name for field in dataclasses.fields(PeerConfig)}
    assert set(tables["peer"]) | {"streams", "feeds", "security"} == peer
    shown = tables["peer"]["discovery"]
    assert set(shown) == {field.name for field in dataclasses.fields(Discovery)}
    assert config.discovery is not None
    for name in set(shown) - {"zeroconf", "seeds", "advertise"}:
        assert getattr(config.discovery, name) == getattr(Discovery(), name), name
    assert set(tables["peer"]["tuning"]) == {field.name for field in dataclasses.fields(Tuning)}
    assert set(tables["stream"][0]) == {field.name for field in dataclasses.fields(Stream)}
    assert config.tuning == Tuning(), "the values shown are the defaults"
    unset = dict.fromkeys(("name", "evict_after", "retention", "transport", "group_keep"))
    shown = dataclasses.replace(config.streams[0], durability="none", **unset)  # type: ignore[arg-type]
    assert shown == Stream("quotes.**")
    lines = tables["stream"][0]["transport"]
    assert set(lines) == {field.name for field in dataclasses.fields(Multicast)}
    chosen = ("interface", "ttl", "second", "second_interface", "flow", "parity")
    for name in set(lines) - set(chosen):
        default = getattr(Multicast("239.255.7.7:30001"), name)
        assert getattr(config.streams[0].transport, name) == default, name
    assert set(tables["feed"][0]) == {field.name for field in dataclasses.fields(Feed)}


@pytest.mark.parametrize("name", refresh.CONFIG_CLASSES)
def test_every_field_has_a_docstring(name: str) -> None:
    rows = refresh.fields_of(name)
    fields = [f for f in dataclasses.fields(refresh.CONFIG_CLASSES[name]) if f.init]
    assert [row[0] for row in rows] == [field.name for field in fields]
    assert all(text for _, _, text in rows)


# The Python interface --------------------------------------------------------------------------


def test_every_public_name_is_in_the_api_page() -> None:
    text = page("python-api.md")
    missing = [name for name in meshmsg.__all__ if not re.search(rf"`{name}\b", text)]
    assert missing == []


def public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


@pytest.mark.parametrize("kind", [meshmsg.Peer, meshmsg.Subscription], ids=lambda k: k.__name__)
def test_every_verb_stands_with_its_signature(kind: type) -> None:
    text = section(page("python-api.md"), f"## `{kind.__name__}`")
    for name in public(kind):
        member = inspect.getattr_static(kind, name)
        written = name if isinstance(member, property) else name + spelled(getattr(kind, name))
        assert f"`{written}`" in text


def test_constructor_of_a_peer_stands_with_its_signature() -> None:
    assert f"`Peer{spelled(Peer.__init__)}`" in page("python-api.md")


@pytest.mark.parametrize(
    "name", ["Batch", "Event", "Position", "Loss", "Ledger", "LedgerRow", "PeerInfo", "PeerChange"]
)
def test_every_attribute_is_described(name: str) -> None:
    text = section(page("python-api.md"), f"## `{name}`")
    kind = getattr(meshmsg, name)
    assert [n for n in public(kind) if not re.search(rf"`(\w+\.)?{n}\b", text)] == []


@pytest.mark.parametrize(
    ("kind", "base"), [("AsyncPeer", "Peer"), ("AsyncSubscription", "Subscription")]
)
def test_async_verbs_are_those_of_the_sync_ones(kind: str, base: str) -> None:
    async_kind, sync_kind = getattr(meshmsg, kind), getattr(meshmsg, base)
    text = section(page("python-api.md"), f"## `{kind}`")
    for name in set(public(sync_kind)) - set(public(async_kind)):
        assert f"`{name}`" in text, "what only the sync one has is said"
    for name in set(public(sync_kind)) & set(public(async_kind)):
        member = getattr(async_kind, name)
        if callable(member):
            assert spelled(member) == spelled(getattr(sync_kind, name))


def test_errors_table_is_the_tree() -> None:
    text = section(page("python-api.md"), "## Errors")
    rows = dict(re.findall(r"^\| `(\w+)` \|(?: `(\w+)`)? \|", text, re.MULTILINE))
    errors = [getattr(meshmsg, name) for name in meshmsg.__all__]
    errors = [kind for kind in errors if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert set(rows) == {kind.__name__ for kind in errors}
    for kind in errors:
        bases = [base.__name__ for base in kind.__mro__[1:]]
        assert not rows[kind.__name__] or rows[kind.__name__] in bases


def test_testing_helpers_stand_with_their_signatures() -> None:
    text = page("testing.md")
    for name in ("lose_frames", "lose_messages", "lose_packets"):
        assert f"`{name}{spelled(getattr(meshmsg.testing, name))}`" in text
    for kind in (meshmsg.testing.LossyLink, meshmsg.testing.LossyPath):
        assert f"`{kind.__name__}{spelled(kind.__init__)}`" in text


def test_every_loss_reason_is_explained() -> None:
    rows = tables(section(page("guarantees.md"), "## Losses"))[0]
    assert set(LOSS_REASONS) <= set(rows)


# The wire format -------------------------------------------------------------------------------

WIRE_ID = control.stream_wire_id("default", "demo/quotes.**")
EPOCH = 1_700_000_000_000_000


def dumped(name: str) -> bytes:
    """The bytes of a hex dump; what stands before two spaces is the offset."""
    lines = block_after(page("wire-format.md"), name).splitlines()
    return bytes.fromhex("".join(line.rpartition("  ")[2] for line in lines))


def test_stream_id_and_token_in_the_page_are_real() -> None:
    assert dumped("stream id") == WIRE_ID.to_bytes(8, "little")
    assert dumped("token") == control.subscription_token(5)


def test_frame_in_the_page_is_real() -> None:
    data = frames.encode_frame(
        WIRE_ID,
        EPOCH,
        41,
        ["quotes.eu", "quotes.us"],
        [msgspec.msgpack.encode(7), msgspec.msgpack.encode("hi")],
        1_700_000_000_123_456_789,
        raw=False,
        keys={0: "A"},
    )
    assert dumped("frame") == data
    frame = frames.Frame(data)
    assert (frame.first, frame.stop, frame.epoch) == (41, 43, EPOCH)
    assert [frame.key_at(0), frame.key_at(1)] == ["A", None]


def test_heartbeat_in_the_page_is_real() -> None:
    assert dumped("heartbeat") == frames.Heartbeat(WIRE_ID, EPOCH, 0, 43).encode()


def test_control_message_in_the_page_is_real() -> None:
    nack = control.Nack(sub=5, stream="demo/quotes.**", epoch=EPOCH, ranges=[(41, 43)], number=1)
    assert dumped("nack") == control.encode_message(nack)
    assert control.decode_message(dumped("nack")) == nack


def test_work_message_in_the_page_is_real() -> None:
    frame = frames.encode_frame(
        WIRE_ID,
        EPOCH,
        41,
        "quotes.eu",
        [msgspec.msgpack.encode(7)],
        1_700_000_000_123_456_789,
        raw=False,
    )
    work = subframes.Work(frame, 0, 1, None, 1)
    assert dumped("work") == subframes.encode_work(5, work)


def test_header_tables_add_up() -> None:
    text = page("wire-format.md")
    for heading, struct in (
        ("## Frames", frames.HEADER),
        ("## Heartbeats", layout.HEARTBEAT),
        ("## Work messages", subframes.WORK_HEADER),
    ):
        rows = re.findall(r"^\| (\d+) \| (\d+) \| `", section(text, heading), re.MULTILINE)
        at = 0
        for offset, size in rows:
            assert int(offset) == at
            at += int(size)
        assert at == struct.size


def test_flags_in_the_page_are_those_of_the_codec() -> None:
    text = section(page("wire-format.md"), "## Frames")
    written = {name: int(bit) for bit, name in re.findall(r"[Ff]lag (\d+) `(\w+)`", text)}
    names = ("TOPIC_INDEX", "TIMES", "ENCODINGS", "RAW", "KEYS", "HEADERS")
    assert written == {name: getattr(frames, name) for name in names}


@pytest.mark.parametrize("kind", typing.get_args(control.Message), ids=lambda k: k.__name__)
def test_control_message_is_described_field_by_field(kind: Any) -> None:
    tag = kind.__struct_config__.tag
    described = tables(section(page("wire-format.md"), f"### `{tag}`"))
    fields = list(kind.__struct_fields__)
    assert (described[0] if described else []) == fields


@pytest.mark.parametrize(
    ("tag", "place", "kind"),
    [
        ("welcome", 1, control.StreamInfo),
        ("welcome", 2, MulticastInfo),
        ("subscribe", 1, control.Start),
        ("status", 1, control.Figures),
        ("settle", 1, control.Settlement),
        ("pong", 1, control.Tail),
        ("here", 1, control.Contact),
    ],
)
def test_part_of_a_message_is_described_field_by_field(tag: str, place: int, kind: Any) -> None:
    described = tables(section(page("wire-format.md"), f"### `{tag}`"))
    assert described[place] == list(kind.__struct_fields__)


def test_start_kinds_are_described() -> None:
    kinds = tables(section(page("wire-format.md"), "### `subscribe`"))[2]
    assert kinds == ["live", "earliest", "last", "time", "resume", "origin"]


def test_limits_in_the_page_are_those_of_the_code() -> None:
    text = section(page("wire-format.md"), "## Limits")
    limits = (
        ("frame", frames.FRAME_BYTES_MAX),
        ("events in a frame", frames.FRAME_EVENTS_MAX),
        ("topics in a frame", layout.FRAME_TOPICS_MAX),
        ("headers of an event", frames.HEADERS_BYTES_MAX),
        ("control message without its frame", control.CONTROL_BYTES_MAX),
    )
    for name, value in limits:
        assert re.search(rf"^\| {name} \| {value:,}\b", text, re.MULTILINE)
    assert f"| ranges in `nack` and `gone` | {NACK_RANGES_MAX} |" in text


def test_protocol_version_is_the_one_described() -> None:
    assert f"Protocol version {control.PROTOCOL_VERSION}." in page("wire-format.md")


# Operations ------------------------------------------------------------------------------------


def sources() -> str:
    files = rooms.paths("meshmsg", "recovery", "transports")
    product = [path for path in files if not path.startswith("meshmsg/cli/")]
    return "\n".join((ROOT / path).read_text("utf-8") for path in product)


def test_every_counter_is_explained() -> None:
    code = sources()
    names = set(re.findall(r'counters\["(\w+)"\]', code))
    names |= {
        n for pair in re.findall(r'counters\["(\w+)" if .* else "(\w+)"\]', code) for n in pair
    }
    assert names
    explained = {name for column in tables(page("operations.md")) for name in column}
    explained |= set(re.findall(r"`(\w+)`", section(page("operations.md"), "## Counters")))
    assert names - explained == set()


def test_every_key_of_the_statistics_is_explained() -> None:
    text = page("operations.md")
    line = Multicast(f"239.255.7.30:{free_port()}")
    with (
        Peer("one", streams=[Stream("a.**", transport=line)]) as one,
        Peer("two", connect=one.address) as two,
        two.subscribe("**") as events,
        two.subscribe("a.**", group="workers", auto_ack=True) as work,
    ):
        one.wait_for_subscribers("a.b", count=2, timeout=30)
        one.publish("a.b", 1)
        assert events.get(timeout=30) is not None
        assert work.get(timeout=30) is not None
        assert work.get(timeout=0) is None  # acknowledged by asking for the next one
        stream = one.stats()["streams"]["a.**"]
        group = stream["groups"][0]
        reader = two.stats()
        source = reader["subscriptions"][0]["sources"][0]
        packets = [stream["multicast"], source["multicast"]]
        link = reader["links"][0]
        groups = [
            stream,
            stream["subscribers"][0],
            group,
            group["members"][0],
            reader,
            reader["members"][0],
            reader["members"][0]["sources"][0],
            reader["subscriptions"][0],
            source,
            link,
            *packets,
            *(line for figures in packets for line in figures["lines"]),
        ]
    missing = {key for group in groups for key in group if f"`{key}`" not in text}
    assert missing == set()


# The command -----------------------------------------------------------------------------------


def test_every_verb_of_the_command_is_listed() -> None:
    import typer

    from meshmsg.cli import app

    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    shown = {name for name, verb in verbs.items() if not verb.hidden}
    assert set(tables(page("cli.md"))[0]) == shown


def test_options_in_the_pages_exist() -> None:
    import typer

    from meshmsg.cli import app

    command = typer.main.get_command(app)
    verbs = command.commands  # type: ignore[attr-defined]
    known = {verb: set() for verb in verbs}  # type: dict[str, set[str]]
    for verb, sub in verbs.items():
        parts = getattr(sub, "commands", {}).values()  # the verbs below `log`
        for parameter in [*sub.params, *(p for part in parts for p in part.params)]:
            known[verb] |= {*parameter.opts, *parameter.secondary_opts}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for verb, rest in re.findall(r"^(?:.*\| )?\s*meshmsg (\w+)(.*)$", text, re.MULTILINE):
            assert verb in known
            used = re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest.partition(" | ")[0])
            assert set(used) <= known[verb], f"{verb}{rest}"


@pytest.mark.skipif(os.name != "posix", reason="a session of a POSIX shell")
def test_session_in_the_command_page_runs(tmp_path: Path) -> None:
    text = page("cli.md")
    script = block_after(text, "session").replace("7411", str(free_port()))
    # The command of the Python that runs the tests, found as a user would.
    (tmp_path / "meshmsg").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m meshmsg "$@"\n')
    (tmp_path / "meshmsg").chmod(0o755)
    done = subprocess.run(
        [shutil.which("sh") or "sh", "-ec", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    clock = re.compile(r"\d\d:\d\d:\d\d\.\d{3}")
    assert clock.sub("TIME", done.stdout) == clock.sub("TIME", block_after(text, "output"))
