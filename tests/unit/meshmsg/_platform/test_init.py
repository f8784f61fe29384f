"""What a peer runs on: the system, unless another platform was entered."""

import re
import threading
import time
from pathlib import Path

import pytest

from meshmsg import _platform

ROOT = Path(__file__).resolve().parents[4]
#: What runs on other threads than a peer's own, or measures this machine.
SYSTEMS = {
    "meshmsg/_runtime/busy.py",
    "meshmsg/_links/resolver.py",
    "meshmsg/_peer/async_peer.py",
    "meshmsg/_peer/async_presence.py",
    "meshmsg/_replay/log_client.py",
}


class Stopped(_platform.Platform):
    def monotonic(self) -> float:  # type: ignore[override]
        return 42.0


def test_platform_is_the_system_unless_another_was_entered() -> None:
    before = time.monotonic()
    assert before <= _platform.monotonic() <= time.monotonic()
    with _platform.entered(Stopped()):
        assert _platform.monotonic() == 42.0
    assert _platform.current() is _platform.SYSTEM


def test_other_threads_stay_on_the_system() -> None:
    seen: list[object] = []
    with _platform.entered(Stopped()):
        thread = threading.Thread(target=lambda: seen.append(_platform.current()))
        thread.start()
        thread.join()
    assert seen == [_platform.SYSTEM]


def test_system_gives_real_locks_and_threads() -> None:
    condition = _platform.new_condition(_platform.new_rlock())
    with condition:
        assert not condition.wait(0)
    assert isinstance(_platform.new_thread(print, "name"), threading.Thread)
    assert _platform.current_thread() is threading.current_thread()
    assert _platform.new_lock().acquire(blocking=False)
    assert not _platform.new_event().is_set()
    assert _platform.randbits(8) < 256
    assert 0 <= _platform.new_random().random() < 1
    assert _platform.thread_time() >= 0
    assert abs(_platform.time_ns() - time.time_ns()) < 60e9
    _platform.sleep(0)
    with _platform.current().at("anywhere"):
        pass


@pytest.mark.parametrize("word", ["time.monotonic", "time.sleep", "time.time", "threading.Thread("])
def test_roles_ask_the_platform_and_not_the_system(word: str) -> None:
    rooms = ("_publish", "_receive", "_groups", "_links", "_replay", "_peer", "_runtime")
    asks = re.compile(rf"(?<![.\w`]){re.escape(word)}")
    found = {
        str(file.relative_to(ROOT))
        for room in rooms
        for file in (ROOT / "meshmsg" / room).glob("*.py")
        if asks.search(file.read_text())
    }
    assert found <= SYSTEMS
