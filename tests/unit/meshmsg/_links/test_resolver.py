"""The scout: names, reasons and zeroconf, on its thread; the network is a few lines here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from meshmsg._links import resolver as module
from meshmsg._links.resolver import Name, Scout, interfaces_of, others_text
from meshmsg._model.config import PeerConfig
from meshmsg._model.discovery_config import Discovery
from meshmsg._model.errors import ConfigError
from meshmsg.transports.discovery.mdns import Service
from tests.support.ports import free_port
from tests.support.waiting import wait_until

HERE = "tcp://127.0.0.1:4000"
SCOPE = "folder"


class Beacon:
    """Zeroconf: what was announced, and what is known."""

    problem: Exception | None = None
    services: ClassVar[list[Service]] = []
    announced: ClassVar[list[Any]] = []
    closed = 0

    def __init__(self, hosts: tuple[str, ...], listener: Any) -> None:
        if Beacon.problem is not None:
            raise Beacon.problem

    def announce(self, *given: Any) -> None:
        Beacon.announced.append(given)

    def known(self) -> list[Service]:
        return Beacon.services

    def close(self) -> None:
        Beacon.closed += 1


@pytest.fixture(autouse=True)
def beacon(monkeypatch: pytest.MonkeyPatch) -> type[Beacon]:
    Beacon.problem, Beacon.services, Beacon.announced, Beacon.closed = None, [], [], 0
    monkeypatch.setattr(module, "new_beacon", Beacon)
    return Beacon


class Told:
    """What a scout has found."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []
        self.dues: list[float] = []
        self.reasons: list[tuple[str, str]] = []
        self.made: list[Scout] = []

    def on_name(self, name: Name) -> None:
        self.names.append(list(name.addresses))
        self.dues.append(name.due)

    def scout(
        self,
        *names: Name,
        zeroconf: bool = False,
        addresses: tuple[str, ...] = (HERE,),
        **found: Any,
    ) -> Scout:
        one = Scout(
            PeerConfig("me", discovery=Discovery(**found)),
            77,
            addresses,
            list(names),
            scope=SCOPE,
            zeroconf=zeroconf,
            on_service=lambda there, service: None,
            on_name=self.on_name,
            on_reason=lambda address, why: self.reasons.append((address, why)),
            counters=Counter(),
        )
        self.made.append(one)
        return one


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    yield made
    for one in made.made:
        one.close()


# Names and reasons -----------------------------------------------------------------------------


def test_name_stands_for_its_addresses(told: Told) -> None:
    name = Name("localhost", 7)
    told.scout(name).start()
    wait_until(lambda: told.names)
    assert "127.0.0.1" in told.names[0]
    assert (name.reason, name.tries) == ("", 0)


def test_name_that_cannot_be_looked_up_is_tried_ever_more_rarely(
    told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(host: str) -> list[str]:
        raise OSError(-2, "no such name")

    monkeypatch.setattr(module, "resolve", fail)
    monkeypatch.setattr(module, "RESOLVE_RETRY_S", 0.001)
    name = Name("nowhere", 7)
    told.scout(name, resolve_every="10s").start()
    wait_until(lambda: name.tries >= 7)
    assert told.dues[6] - told.dues[5] >= 0.001 * 2**6
    assert name.reason == "no such name"
    assert caplog.text.count("cannot be looked up") == 1
    assert told.names[:1] == [[]]
    monkeypatch.setattr(module, "resolve", lambda host: ["10.0.0.1"])
    wait_until(lambda: told.names[-1] == ["10.0.0.1"])
    assert (name.reason, name.tries) == ("", 0)


def test_reason_why_nobody_answers_is_found_out(told: Told) -> None:
    scout = told.scout()
    scout.start()
    address = f"tcp://127.0.0.1:{free_port()}"
    scout.ask_why(address)
    wait_until(lambda: told.reasons)
    ((asked, why),) = told.reasons
    assert asked == address
    assert "refused" in why.lower() or "nobody" in why.lower()


def test_questions_beyond_the_limit_are_dropped(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOBS_MAX", 1)
    scout = told.scout()
    for n in range(3):
        scout.ask_why(f"tcp://127.0.0.1:{n + 1}")
    scout.start()
    wait_until(lambda: told.reasons)
    scout.close()
    assert [address for address, _ in told.reasons] == ["tcp://127.0.0.1:1"]


def test_scout_that_was_never_needed_is_closed_like_any_other(told: Told) -> None:
    told.scout().close()


def test_defect_of_the_system_s_resolver_does_not_end_the_search(
    told: Told, monkeypatch: pytest.MonkeyPatch, quiet_logs: None
) -> None:
    def fail(host: str) -> list[str]:
        raise RuntimeError("a defect")

    monkeypatch.setattr(module, "resolve", fail)
    scout = told.scout(Name("x", 7))
    scout.start()
    wait_until(lambda: scout.guard.problem)
    monkeypatch.setattr(module, "resolve", lambda host: ["10.0.0.1"])
    wait_until(lambda: told.names == [["10.0.0.1"]])


def test_search_ends_at_once(told: Told) -> None:
    scout = told.scout(Name("localhost", 7), zeroconf=True)
    scout.start()
    assert scout.is_running
    scout.close()
    scout.close()
    assert not scout.is_running


# Zeroconf --------------------------------------------------------------------------------------


def started(told: Told, **given: Any) -> Scout:
    scout = told.scout(zeroconf=True, **given)
    scout.start()
    wait_until(lambda: scout.zeroconf["state"] != "starting")
    return scout


def test_peer_is_announced_with_what_others_need_to_know(told: Told, beacon: type[Beacon]) -> None:
    scout = started(told)
    ((label, hosts, port, records),) = beacon.announced
    assert label == f"me-{77:016x}"
    assert (hosts, port) == (("127.0.0.1",), 4000)
    assert records["mesh"] == "default"
    assert (records["peer"], records["id"], records["scope"]) == ("me", f"{77:016x}", SCOPE)
    assert scout.zeroconf["state"] == "on"
    scout.close()
    assert beacon.closed == 1


def test_peer_that_listens_elsewhere_is_not_announced_and_says_so(
    told: Told, beacon: type[Beacon]
) -> None:
    scout = started(told, addresses=("tcp://10.0.0.1:4000", "ipc:///x"))
    assert beacon.announced == []
    assert "it listens at tcp://10.0.0.1:4000" in scout.zeroconf["reason"]
    started(told, addresses=("tcp://10.0.0.1:4000",), advertise="tcp://10.0.0.1:4000")
    assert len(beacon.announced) == 1  # the user says that others can reach it


@pytest.mark.parametrize("problem", [OSError("no device"), RuntimeError(), ImportError("zeroconf")])
def test_where_zeroconf_does_not_work_the_search_goes_on(
    told: Told, beacon: type[Beacon], problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    beacon.problem = problem
    scout = started(told)
    assert scout.zeroconf["state"] == "failed"
    assert scout.zeroconf["reason"] in (str(problem), "RuntimeError")
    assert scout.known() == []
    scout.ask_why("tcp://127.0.0.1:1")
    wait_until(lambda: told.reasons)
    assert "zeroconf cannot be used" in caplog.text


def service(number: int, **records: str) -> Service:
    given = {"mesh": "default", "scope": SCOPE, "id": f"{number:016x}"}
    return Service(f"s{number}", ("127.0.0.1",), 1, {**given, **records})


def test_peers_of_our_mesh_and_folder_are_ours(told: Told, beacon: type[Beacon]) -> None:
    ours, elsewhere = service(1), service(2, scope="other")
    beacon.services = [ours, elsewhere, service(3, mesh="other")]
    scout = started(told)
    assert [scout.is_ours(one) for one in beacon.services] == [True, False, False]
    assert scout.elsewhere() == [elsewhere]
    assert scout.known() == beacon.services


@pytest.mark.parametrize(
    ("services", "said"),
    [
        ([], "our own announcement was not heard"),
        ([service(77)], "has heard of no other peer of mesh 'default'"),
        ([service(77), service(2, scope="other")], "1 peer of another folder is here"),
        ([service(77), service(2)], ""),
    ],
)
def test_who_hears_nobody_for_a_while_is_told_what_may_be_wrong(
    told: Told,
    beacon: type[Beacon],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    services: list[Service],
    said: str,
) -> None:
    caplog.set_level("INFO")
    beacon.services = services
    monkeypatch.setattr(module, "HINT_S", 0.0)
    scout = started(told)
    scout.ask_why("tcp://127.0.0.1:1")
    wait_until(lambda: told.reasons)
    assert said in caplog.text
    assert bool(said) == ("meshmsg doctor" in caplog.text)


def test_words_about_others_and_interfaces() -> None:
    assert others_text(1, "mesh=").startswith("1 peer of another folder is here")
    assert others_text(2, "mesh=").startswith("2 peers of other folders are here")
    assert interfaces_of("127.0.0.1") == ("127.0.0.1",)
    assert interfaces_of("::1") == ("::1",)
    assert "127.0.0.1" in interfaces_of("0.0.0.0")
    with pytest.raises(ConfigError):
        interfaces_of("192.0.2.1")
