"""Starts Debian's Chromium without a screen, and opens pages in it and waits for what they show."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.web.conftest import ServedPage

_DEADLINE_S = 120

# Without these it looks for updates and for hosts of its maker at every start. Root needs --no-sandbox.
_SWITCHES = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium(profile: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> Iterator[Any]:
    """Yield a browser with a new profile in this directory, and end it."""
    from selenium.webdriver.chrome.service import Service  # takes a third of a second in every test process

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


def enter(driver: Any, page: ServedPage) -> None:
    """Log in by the newest link."""
    driver.get(f"http://127.0.0.1:{page.port}/enter?link={page.links[-1]}")


def open_page(driver: Any, page: ServedPage, path: str) -> None:
    """Open a page by its path."""
    driver.get(f"http://127.0.0.1:{page.port}{path}")


def wait_for(driver: Any, condition: Callable[[Any], Any], awaited: str) -> Any:
    """Wait until the condition is true of the browser, and return its value."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(driver, _DEADLINE_S, poll_frequency=0.1).until(condition, f"waited for {awaited}")


def wait_for_text(driver: Any, *texts: str) -> None:
    """Wait until the page shows all these texts."""
    wait_for(driver, lambda d: all(text in d.find_element(By.ID, "content").text for text in texts), repr(texts))


def complaints(driver: Any) -> list[str]:
    """Return what the browser's console says of faults, but for requests that the test wants to be refused."""
    return [entry["message"] for entry in driver.get_log("browser") if "status of 401" not in entry["message"]]


def is_too_wide(driver: Any) -> bool:
    """Return whether the page is wider than its window."""
    script = "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
    return bool(driver.execute_script(script))
