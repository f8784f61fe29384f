"""Keys together with the rest: asyncio, recorders, ipc, discovery, several peers in a process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from meshmsg import AsyncPeer, ConfigError, Discovery, Peer, Security, Stream
from meshmsg.webhooks import WebhookServer
from tests.support.waiting import wait_until

WAIT_S = 60.0


def test_an_event_loop_reads_from_several_publishers(keys: Any) -> None:
    names = ["one", "two", "three"]
    securities = {name: keys.peer(name) for name in (*names, "desk")}

    async def main() -> list[Any]:
        peers = [
            Peer(name, streams=[Stream("a.**")], security=securities[name]).open() for name in names
        ]
        try:
            addresses = [peer.address for peer in peers]
            async with (
                AsyncPeer("desk", connect=addresses, security=securities["desk"]) as desk,
                desk.subscribe("a.**") as events,
            ):
                reader = asyncio.create_task(take(events))
                for peer in peers:
                    await asyncio.to_thread(peer.wait_for_subscribers, "a.b", 1, WAIT_S)
                    for n in range(50):
                        peer.publish("a.b", [peer.name, n])
                return await asyncio.wait_for(reader, WAIT_S)
        finally:
            for peer in peers:
                peer.close()

    async def take(events: Any) -> list[Any]:
        return [(await anext(aiter(events))).data for _ in range(150)]

    seen = asyncio.run(main())
    for name in names:
        assert [n for who, n in seen if who == name] == list(range(50))


def test_a_recorder_serves_what_it_may_publish(keys: Any, tmp_path: Path) -> None:
    shop_keys = keys.peer("shop")
    recorder_keys = keys.peer("keeper", publish=("a.**",))
    late_keys = keys.peer("late")
    with Peer("keeper", record="**", data_dir=tmp_path / "kept", security=recorder_keys) as keeper:
        streams = [Stream("a.**"), Stream("b.**")]
        with Peer("shop", streams=streams, connect=keeper.address, security=shop_keys) as shop:
            shop.wait_for_subscribers("a.x", timeout=WAIT_S)
            shop.wait_for_subscribers("b.x", timeout=WAIT_S)
            for n in range(20):
                shop.publish("a.x", n)
                shop.publish("b.x", n)
            shop.flush(timeout=WAIT_S)
            wait_until(lambda: events_of(keeper) == 40, WAIT_S)
        with (
            Peer("late", connect=keeper.address, security=late_keys) as late,
            late.subscribe("**", start="earliest") as events,
        ):
            seen = [events.get(timeout=WAIT_S) for _ in range(20)]
            assert [(event.topic, event.data) for event in seen] == [("a.x", n) for n in range(20)]
            assert late.stats()["counters"]["not_permitted"] >= 1


def events_of(recorder: Peer) -> int:
    return sum(stream["events"] for stream in recorder.stats()["recorder"]["streams"])


def test_keys_hold_over_ipc_too(
    keys: Any, mesh_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has to be short
    for way, ours, theirs in (
        ("m", Security(mesh_key=mesh_key), Security(mesh_key=mesh_key)),
        ("a", keys.peer("shop"), keys.peer("desk")),
    ):
        with (
            Peer("shop", bind=f"ipc://{way}.sock", streams=[Stream("a.**")], security=ours) as shop,
            Peer("desk", connect=shop.address, security=theirs) as desk,
            desk.subscribe("a.**") as events,
        ):
            shop.wait_for_subscribers("a.b", timeout=WAIT_S)
            shop.publish("a.b", 1)
            assert events.get(timeout=WAIT_S).data == 1


def test_discovery_finds_those_with_keys_and_passes_by_others(keys: Any) -> None:
    names = ["hub", "one", "two"]
    securities = {name: keys.peer(name) for name in names}
    with Peer("hub", discovery="gossip", security=securities["hub"]) as hub:
        seeds = Discovery(zeroconf=False, seeds=hub.address)
        with (
            Peer("one", discovery=seeds, security=securities["one"]) as one,
            Peer("two", discovery=seeds, security=securities["two"]) as two,
            Peer("stranger", discovery=seeds) as stranger,
        ):
            for peer in (hub, one, two):
                wait_until(lambda p=peer: len(p.peers()) == 2, WAIT_S)  # type: ignore[misc]
            wait_until(lambda: stranger.stats()["discovery"]["contacts"][0]["reason"], WAIT_S)
            contact = stranger.stats()["discovery"]["contacts"][0]
            assert "one side has a key" in contact["reason"]
            assert {info.name for info in hub.peers()} == {"one", "two"}


def test_a_name_that_everyone_would_refuse_is_refused_at_the_start(
    keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    security = keys.peer("shop", publish=("a.**",))
    with pytest.raises(ConfigError, match="calls itself 'other' has the key of 'shop'"):
        Peer("other", security=security).open()
    with Peer("shop", streams=[Stream("b.**")], security=security):
        assert "our allow-list does not let us publish" in caplog.text


def test_edges_without_keys_stay_on_this_machine_unless_told(mesh_key: str) -> None:
    from meshmsg._bridge.plaintext import check_plain, check_plain_url

    closed = Peer("p", security=Security(mesh_key=mesh_key))
    told = Peer("p", security=Security(mesh_key=mesh_key, plain="statsd"))
    for host in ("10.0.0.7", "0.0.0.0", "::", "metrics.example"):
        with pytest.raises(ConfigError, match=r"statsd has no keys.*plain='statsd'"):
            check_plain(closed, "statsd", host)
        check_plain(told, "statsd", host)
        check_plain(Peer("p"), "statsd", host)
        with pytest.raises(ConfigError, match="moldudp"):
            check_plain(told, "moldudp", host)
    for host in ("127.0.0.1", "::1", "localhost"):
        check_plain(closed, "statsd", host)
    for url in (
        "tcp://10.0.0.7:7",
        "tcp://*:7",
        "ws://10.0.0.7:80/x",
        "TCP://0.0.0.0:5555",
        "Tcp://10.0.0.7:7",
        "ws4://0.0.0.0:80",
        "ws6://[::]:80/x",
        "udp://10.0.0.7:7",
        "10.0.0.7:7",
    ):
        with pytest.raises(ConfigError, match="nanomsg"):
            check_plain_url(closed, "nanomsg", url)
    for url in (
        "tcp://127.0.0.1:7",
        "ipc:///tmp/x",
        "IPC:///tmp/x",
        "tls+tcp://10.0.0.7:7",
        "tcp://[::1]:7",
        "TCP://[::1]:7",
        "wss://10.0.0.7/x",
    ):
        check_plain_url(closed, "nanomsg", url)
    with pytest.raises(ConfigError, match="plain"):
        Security(mesh_key=mesh_key, plain="ftp")


def test_webhooks_that_anybody_can_read_or_make_up_stay_on_this_machine_unless_told(
    mesh_key: str,
) -> None:
    closed = Peer("p", security=Security(mesh_key=mesh_key))
    told = Peer("p", security=Security(mesh_key=mesh_key, plain="webhooks"))
    certificate = Path(__file__).parents[2] / "data/self_signed.pem"
    signed: dict[str, Any] = {"secrets": "whsec_" + "c2VjcmV0" * 4}
    unsigned: dict[str, Any] = {"scheme": "none"}
    far, near = "0.0.0.0:8080", "127.0.0.1:8080"
    for how in (signed, unsigned, {**unsigned, "certificate": certificate}):
        with pytest.raises(ConfigError, match=r"webhooks has no keys.*plain='webhooks'"):
            WebhookServer(closed, far, topic="a", **how)
        WebhookServer(closed, near, topic="a", **how)
        WebhookServer(told, far, topic="a", **how)
        WebhookServer(Peer("p"), far, topic="a", **how)
    WebhookServer(closed, far, topic="a", certificate=certificate, **signed)
