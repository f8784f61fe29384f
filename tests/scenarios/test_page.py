"""The live page in a real browser: figures move, peers go, losses appear, names are only text."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from meshmsg import EventsLost, Monitor, Peer, Stream
from meshmsg._overview.mesh import Look, MeshView
from meshmsg.monitor.answers import Answers
from meshmsg.monitor.http_server import HttpServer
from meshmsg.monitor.snapshots import Snapshots
from meshmsg.testing import lose_frames
from tests.support.browsing import browser, show, texts
from tests.support.overviews import card, group, peer, stream, subscriber
from tests.support.processes import start
from tests.support.waiting import wait_until

# One browser for all of them.
pytestmark = pytest.mark.xdist_group("page")

PATIENCE_S = 60
TOKEN = "0123456789abcdef0123"
ROW = "#streams tbody tr"


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def page(chrome: Any) -> Iterator[Any]:
    """The browser, on no page before and after the test, and without complaints by then."""
    show(chrome, 1280, 900)
    chrome.get("about:blank")
    chrome.get_log("browser")
    yield chrome
    complaints = [line["message"] for line in chrome.get_log("browser")]
    chrome.get("about:blank")
    # Those of the network are what some tests are about.
    assert [line for line in complaints if "Failed to load resource" not in line] == []


def address(of: Peer) -> str:
    return "http://{}:{}/".format(*of.monitor.address)


class Stage:
    """A page's server whose mesh a test makes up."""

    def __init__(self, *looks: Look) -> None:
        self._view, self._now = MeshView(), 0.0
        self._snapshots = Snapshots(Counter())
        self._seen = None
        counters: Counter[str] = Counter()
        answers = Answers("stage", [], None, 100, counters, time.monotonic, self._first)
        self._server = HttpServer("127.0.0.1", 0, answers.answer, counters)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        for look in looks:
            self.play(look)

    def __enter__(self) -> Stage:
        self.url = "http://{}:{}/".format(*self._server.open())
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._server.wake()
        self._thread.join()
        self._server.close()

    def _serve(self) -> None:
        while not self._ended.is_set():
            self._server.turn()

    def _event(self, history: Any = None) -> bytes:
        return self._snapshots.event(self._seen, None, time=0.0, step_s=1.0, history=history)

    def _first(self) -> bytes:
        return self._event(self._view.history)

    def play(self, look: Look) -> None:
        """The mesh a second later."""
        self._now += 1.0
        self._seen = self._view.take(look, now=self._now)
        self._server.send_all(self._event())


def rows(page: Any, section: str) -> list[str]:
    return texts(page, f"#{section} tbody tr")


# --- a real mesh ---


def test_figures_move_a_killed_peer_turns_grey_and_a_loss_appears(page: Any) -> None:
    streams = [Stream("quick.**"), Stream("tiny.**", overflow="drop_oldest", buffer_bytes="64KiB")]
    with (
        Peer("shop", streams=streams, monitor="127.0.0.1:0") as shop,
        Peer("desk", connect=shop.address) as desk,
        desk.subscribe("tiny.**", name="slow") as slow,
        desk.subscribe("quick.**", name="all") as events,
    ):
        command = [sys.executable, "-m", "meshmsg", "sub", "quick.**", "--connect", shop.address]
        victim = start([*command, "--name", "victim", "--quiet"], stdout=-3)
        shop.wait_for_subscribers("quick.x", 2, timeout=PATIENCE_S)
        shop.wait_for_subscribers("tiny.x", 1, timeout=PATIENCE_S)
        page.get(address(shop))
        here = ["desk", "shop", "victim"]
        wait_until(lambda: sorted(texts(page, "#mesh svg text")) == here, PATIENCE_S)
        assert texts(page, "#state") == ["live"]

        def published() -> bool:
            shop.publish("quick.x", 1)
            events.get(timeout=0)
            found = texts(page, "#streams tbody tr:nth-child(1) td:nth-child(2)")
            return found != [] and float(found[0].replace("K", "e3")) > 5

        wait_until(published, PATIENCE_S)
        line = "return document.querySelector('#streams .plot .line').getAttribute('d')"
        wait_until(lambda: len(page.execute_script(line) or "") > 10, PATIENCE_S)
        wait_until(lambda: texts(page, "#ledger tbody td, #ledger tbody th")[:1] == ["✓ yes"])

        victim.send_signal(signal.SIGKILL)
        gone = "return document.querySelector('[data-peer=victim]')?.classList.contains('gone')"
        wait_until(lambda: page.execute_script(gone), PATIENCE_S)
        wait_until(lambda: any("victim" in text for text in texts(page, "#problems li")))

        assert texts(page, "#losses tbody tr") == []
        with lose_frames(shop, ratio=0.9, seed=24):
            for _ in range(500):
                shop.publish("tiny.x", b"x" * 1_000)

        def lost() -> bool:
            with contextlib.suppress(EventsLost):
                slow.get_many(100, timeout=0)
            shop.publish("tiny.x", b"x")
            return any("desk/slow" in row for row in rows(page, "losses"))

        wait_until(lost, PATIENCE_S)
        ranges = {f"{one.first} to {one.stop - 1}" for one in slow.losses}
        reasons = {one.reason for one in slow.losses}
        shown = texts(page, "#losses tbody tr:nth-child(1) td")
        assert shown[1] in ranges
        assert shown[3] in reasons
    wait_until(lambda: "trying again" in texts(page, "#state")[0], PATIENCE_S)


def test_beyond_loopback_the_page_asks_for_the_token(page: Any) -> None:
    with Peer("open", monitor=Monitor("0.0.0.0:0", token=TOKEN)) as one:
        page.get(f"http://127.0.0.1:{one.monitor.address[1]}/")

        def login(token: str) -> None:
            field = page.find_element("id", "token")
            wait_until(field.is_displayed, PATIENCE_S)
            field.send_keys(token + "\n")

        login("a wrong token")
        wait_until(lambda: texts(page, "#login-note") == ["That is not the token."], PATIENCE_S)
        login(TOKEN)
        wait_until(lambda: texts(page, "#state") == ["live"], PATIENCE_S)
        page.refresh()  # the tab keeps it
        wait_until(lambda: texts(page, "#state") == ["live"], PATIENCE_S)
        assert page.get_cookies() == []
        assert TOKEN not in page.page_source


# --- a mesh that is made up ---

HOSTILE = (
    "<script>document.title = 'caught'</script>",
    "<img src=x onerror=document.title='caught'>",
    "a\x00b\x1b[31m\x07",
    "right\u202etfel",
    "\u200b\u2066\ufeff",
    "\"'`${}//",
)
LOG = {"next": 9, "disk_bytes": 5_000_000, "oldest_s": 3 * 86_400.0}


def test_hostile_names_are_text(page: Any) -> None:
    made = [
        stream(
            f"evil/{name}",
            subscriber(name, evicted=True),
            blocked=True,
            blocked_by=[name],
            groups=[group(name, lag=1)],
            log={"path": name, "open": True, "retention": name, **LOG},
        )
        for name in HOSTILE
    ]
    stats = peer("evil", *made, problem=HOSTILE[0], mesh=HOSTILE[1])
    stats["peers"] = [card(name, "publisher") for name in HOSTILE]
    with Stage(Look(stats)) as stage:
        page.get(stage.url)
        wait_until(lambda: len(rows(page, "streams")) == len(HOSTILE), PATIENCE_S)
        wait_until(lambda: len(rows(page, "groups")) == len(HOSTILE), PATIENCE_S)
        shown = texts(page, "#streams tbody th")
        assert f"evil/{HOSTILE[0]}" in shown
        assert "evil/a\\u0000b\\u001b[31m\\u0007" in shown
        assert "evil/right\\u202etfel" in shown
        assert not set("\x00\x1b\x07\u202e\u200b\u2066\ufeff") & set(page.page_source)
        large = lambda: [row for row in texts(page, "#logs tbody tr") if "4.8 MiB3 d" in row]  # noqa: E731
        wait_until(lambda: len(large()) == len(HOSTILE), PATIENCE_S)
        count = "return document.querySelectorAll('script, img').length"
        assert page.execute_script(count) == 2  # the page's own
        assert page.title != "caught"
        assert HOSTILE[1] in page.title


def many(streams: int, look: int) -> Look:
    made = [
        stream(
            f"a/s{n}",
            subscriber(f"p{n % 40}/x", behind=(n * look) % 97, delivered=look * n),
            published=look * (n + 1),
        )
        for n in range(streams)
    ]
    stats = peer("a", *made)
    stats["peers"] = [card(f"p{n}", "subscriber") for n in range(40 if streams else 0)]
    return Look(stats)


def busy_share(page: Any, streams: int) -> float:
    """The part of its time that the page's thread works, while figures come four times a second.

    In its own time of the processor, as others may have that, too.
    """
    with Stage(many(streams, 0)) as stage:
        page.get(stage.url)
        wait_until(lambda: texts(page, "#state") == ["live"], PATIENCE_S)
        if streams:
            wait_until(lambda: len(rows(page, "streams")) == 25, PATIENCE_S)
            page.execute_script("document.querySelector('#streams .more').click()")
            wait_until(lambda: len(rows(page, "streams")) == streams, PATIENCE_S)
        page.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
        before, began = busy_s(page), time.monotonic()
        for look in range(1, 13):
            stage.play(many(streams, look))
            time.sleep(max(0.0, began + 0.25 * look - time.monotonic()))
        busy = busy_s(page) - before
        page.execute_cdp_cmd("Performance.disable", {})
        moved = "#streams tbody tr:nth-child(7) td:nth-child(2)"
        wait_until(lambda: not streams or texts(page, moved) != ["0"], PATIENCE_S)
        return busy / (time.monotonic() - began)


def busy_s(page: Any) -> float:
    found = page.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    (busy,) = [one["value"] for one in found if one["name"] == "TaskDuration"]
    return float(busy)


def test_two_hundred_streams_stay_smooth(page: Any) -> None:
    empty, full = busy_share(page, 0), busy_share(page, 200)
    assert full <= empty + 0.3, (empty, full)


def test_it_can_be_used_from_the_keyboard_and_read_aloud(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    with Stage(many(30, 0), many(30, 1)) as stage:
        page.get(stage.url)
        wait_until(lambda: len(rows(page, "streams")) == 25, PATIENCE_S)
        active = page.switch_to.active_element
        active.send_keys(Keys.TAB)
        assert page.switch_to.active_element.text == "Skip to streams"
        page.execute_script("document.querySelector('#mesh g[tabindex=\"0\"]').focus()")
        for _ in range(3):
            page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        assert texts(page, "#mesh .detail") == ["p2 · silent"]
        page.switch_to.active_element.send_keys(Keys.ENTER)
        wait_until(lambda: page.find_element("id", "filter").get_property("value") == "p2")
        wait_until(lambda: len(rows(page, "subscribers")) == 11, PATIENCE_S)
        page.find_element("id", "filter").send_keys(Keys.BACKSPACE, Keys.BACKSPACE)
        heading = page.find_element("css selector", "#streams thead th:nth-child(2) button")
        heading.send_keys(Keys.ENTER)
        wait_until(lambda: texts(page, "#streams tbody th")[:1] == ["a/s29"], PATIENCE_S)
        heading = page.find_element("css selector", "#streams thead th:nth-child(2)")
        assert heading.get_attribute("aria-sort") == "descending"
        assert texts(page, "main, header, h1, table caption") != []
        unnamed = """return [...document.querySelectorAll('section, table, input, button')]
            .filter((one) => !one.getAttribute('aria-label') && !one.textContent.trim())
            .filter((one) => !one.getAttribute('aria-labelledby') && one.offsetParent)
            .map((one) => one.outerHTML)"""
        assert page.execute_script(unnamed) == []
        scopes = "return [...document.querySelectorAll('th')].every((one) => one.scope)"
        assert page.execute_script(scopes)


def test_it_fits_a_telephone(page: Any) -> None:
    show(page, 400, 800)
    with Stage(many(30, 0)) as stage:
        page.get(stage.url)
        wait_until(lambda: len(rows(page, "streams")) == 25, PATIENCE_S)
        assert page.execute_script("return document.documentElement.scrollWidth") <= 400


def test_a_pause_stands_still_and_goes_on(page: Any) -> None:
    with Stage(many(3, 0), many(3, 1)) as stage:
        page.get(stage.url)
        value = "#streams tbody tr:nth-child(3) td:nth-child(2)"
        wait_until(lambda: texts(page, value) == ["3.0"], PATIENCE_S)
        page.find_element("id", "pause").click()
        stage.play(many(3, 1))
        wait_until(lambda: texts(page, "#state") == ["paused"], PATIENCE_S)
        assert texts(page, value) == ["3.0"]
        page.find_element("id", "pause").click()
        stage.play(many(3, 1))
        wait_until(lambda: texts(page, value) == ["0"], PATIENCE_S)
