"""Starts Debian's Chromium without a screen, for tests of the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

# Without these it looks for updates and for hosts of its maker at every start. Root needs --no-sandbox.
_SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium(profile: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """Yield a browser with a new profile in this directory, and end it."""
    options = webdriver.ChromeOptions()
    for switch in (*_SWITCHES, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
        options.add_argument(switch)
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        if dark:
            feature = {"name": "prefers-color-scheme", "value": "dark"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        yield driver
    finally:
        driver.quit()
