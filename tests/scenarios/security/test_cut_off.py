"""The allow-list changes while peers are running."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest

from meshmsg import Peer, PeerRefused, Stream, Subscription
from tests.support.waiting import wait_until

WAIT_S = 60.0


def read_out(events: Subscription) -> int:
    """The last that it has got before it was refused."""
    last = 0
    while True:
        try:
            last = events.get(timeout=WAIT_S).data  # type: ignore[union-attr]
        except PeerRefused:
            return last


def test_one_is_cut_off_and_the_others_lose_nothing(
    keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop_keys, bad_keys, good_keys = keys.peer("shop"), keys.peer("bad"), keys.peer("good")
    streams = [Stream("orders.**", overflow="block")]
    stop = threading.Event()
    with (
        Peer("shop", streams=streams, security=shop_keys) as shop,
        Peer("bad", connect=shop.address, security=bad_keys) as bad,
        Peer("good", connect=shop.address, security=good_keys) as good,
        bad.subscribe("orders.**") as theirs,
        good.subscribe("orders.**") as events,
    ):
        shop.wait_for_subscribers("orders.eu", count=2, timeout=WAIT_S)

        def publish() -> None:
            n = 0
            while not stop.is_set():
                shop.publish("orders.eu", n)
                n += 1
                stop.wait(0.001)
            shop.publish("orders.eu", -1)

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            assert events.get(timeout=WAIT_S).data == 0
            assert theirs.get(timeout=WAIT_S).data == 0
            keys.revoke("bad", at="shop")
            wait_until(lambda: "bad" not in shop.stats()["clients"], WAIT_S)
            wait_until(lambda: bad.stats()["links"][0]["state"] == "refused", WAIT_S)
            assert "allow-list" in bad.stats()["links"][0]["reason"]
            wait_until(lambda: "good" in shop.stats()["clients"], WAIT_S)
        finally:
            stop.set()
            publisher.join(WAIT_S)
        seen = [0]
        while seen[-1] >= 0:
            seen.append(events.get(timeout=WAIT_S).data)
        assert seen[:-1] == list(range(len(seen) - 1))
        assert not events.losses
        assert read_out(theirs) < len(seen) - 2  # not to the end
        assert shop.stats()["counters"]["cut_off"] == 1
        assert "bad is cut off" in caplog.text


def test_a_publisher_that_is_cut_off_is_not_heard(keys: Any) -> None:
    bad_keys, desk_keys = keys.peer("bad"), keys.peer("desk")
    with (
        Peer("bad", streams=[Stream("a.**")], security=bad_keys) as bad,
        Peer("desk", connect=bad.address, security=desk_keys) as desk,
        desk.subscribe("a.**") as events,
    ):
        bad.wait_for_subscribers("a.b", timeout=WAIT_S)
        keys.revoke("bad", at="desk")
        wait_until(lambda: desk.stats()["links"][0]["state"] == "refused", WAIT_S)
        assert "does not name the public key" in desk.stats()["links"][0]["reason"]
        sent = bad.publish("a.b", "false")
        assert sent.seq == 0
        with pytest.raises(PeerRefused, match="allow-list"):
            events.get(timeout=WAIT_S)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # that nobody has received it
            bad.close(timeout=0.1)


def test_who_is_put_on_the_list_gets_in_without_a_restart(keys: Any) -> None:
    shop_keys, desk_keys = keys.peer("shop"), keys.peer("desk")
    keys.revoke("desk", at="shop")
    with (
        Peer("shop", streams=[Stream("a.**")], security=shop_keys) as shop,
        Peer("desk", connect=shop.address, security=desk_keys) as desk,
        desk.subscribe("a.**") as events,
    ):
        wait_until(lambda: desk.stats()["links"][0]["state"] == "refused", WAIT_S)
        keys.change("shop", "desk")
        shop.wait_for_subscribers("a.b", timeout=WAIT_S)
        shop.publish("a.b", 1)
        assert events.get(timeout=WAIT_S).data == 1
        # It may do less than before: at once.
        keys.change("shop", "desk", subscribe=())
        wait_until(lambda: desk.stats()["links"][0]["streams"] == [], WAIT_S)


def test_a_publisher_that_is_put_on_the_list_is_heard(
    keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop_keys, desk_keys = keys.peer("shop"), keys.peer("desk")
    keys.revoke("shop", at="desk")
    with (
        Peer("shop", streams=[Stream("a.**")], security=shop_keys) as shop,
        Peer("desk", connect=shop.address, security=desk_keys) as desk,
        desk.subscribe("a.**") as events,
    ):
        wait_until(lambda: desk.stats()["links"][0]["reconnects"] >= 1, WAIT_S)  # tried again
        keys.change("desk", "shop")
        shop.wait_for_subscribers("a.b", timeout=WAIT_S)
        shop.publish("a.b", 1)
        assert events.get(timeout=WAIT_S).data == 1
    assert caplog.text.count("our allow-list does not name the public key") == 1  # said once


def test_a_list_that_cannot_be_read_changes_nothing(
    keys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop_keys, desk_keys = keys.peer("shop"), keys.peer("desk")
    path = keys.folder / "shop" / "allow.toml"
    with (
        Peer("shop", streams=[Stream("a.**")], security=shop_keys) as shop,
        Peer("desk", connect=shop.address, security=desk_keys) as desk,
        desk.subscribe("a.**") as events,
    ):
        shop.wait_for_subscribers("a.b", timeout=WAIT_S)
        path.write_text("[[peer]]\nname = oops")
        wait_until(lambda: "is not TOML" in caplog.text, WAIT_S)
        path.unlink()
        wait_until(lambda: "is missing" in caplog.text, WAIT_S)
        shop.publish("a.b", 1)
        assert events.get(timeout=WAIT_S).data == 1
        assert shop.stats()["security"]["keys"] == 2
