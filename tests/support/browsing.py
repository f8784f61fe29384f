"""A real browser without a screen: Debian's Chromium, driven by Selenium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.tools import need

#: It talks to nobody but the pages of a test.
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # in a container it cannot make its own
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
)


@contextmanager
def browser(folder: Path, width: int = 1280, height: int = 900) -> Iterator[Any]:
    """A driver of a new browser that keeps what it keeps in `folder`; skips where there is none."""
    chromium, chromedriver = need("chromium", "chromedriver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield driver
    finally:
        driver.quit()


def show(driver: Any, width: int, height: int, *, dark: bool = False) -> None:
    """Make the window so large, and its user one who likes it light or dark."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def texts(driver: Any, selector: str) -> list[str]:
    """The text of all elements that a selector finds, at one moment."""
    script = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)"
    found: list[str] = driver.execute_script(script, selector)
    return found
