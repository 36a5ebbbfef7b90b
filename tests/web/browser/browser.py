"""Drives a real Chromium, which must be installed on the system."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from tests.support.wait import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from selenium.webdriver import Chrome

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "needs Chromium and its driver (Debian: apt install chromium chromium-driver)"
WAIT_S = 30.0
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    # Colours that fade have too little contrast for a moment.
    *("--force-prefers-reduced-motion", "--disable-dev-shm-usage", "--window-size=1280,900"),
)
KEY = {"enter": "\ue007", "escape": "\ue00c", "down": "\ue015", "tab": "\ue004"}


class Browser:
    """A browser whose elements are found by what a user sees. Its log must have no problem."""

    def __init__(self, folder: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        for flag in (*_FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver: Chrome = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.url = ""

    def open(self, path: str = "", *, width: int = 1280, height: int = 900) -> None:
        """Opens a page of the server at a size of the window."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/{path}")

    def run(self, script: str, *values: Any) -> Any:
        """Runs a script in the page, and returns its value."""
        return self.driver.execute_script(script, *values)

    def all(self, selector: str) -> list[Any]:
        """Returns the elements of a selector that are shown."""
        from selenium.common.exceptions import StaleElementReferenceException

        try:
            found = self.driver.find_elements("css selector", selector)
            return [one for one in found if one.is_displayed()]
        except StaleElementReferenceException:  # the page was drawn meanwhile
            return []

    def one(self, selector: str, text: str = "") -> Any:
        """Waits for the first element of a selector that is shown, and has this text."""
        from selenium.common.exceptions import StaleElementReferenceException

        def look() -> Any:
            try:
                return next((one for one in self.all(selector) if text in one.text), None)
            except StaleElementReferenceException:
                return None

        return wait_until(look, WAIT_S, every=0.05, why=f"{selector} with {text!r}: {self.text}")

    def click(self, selector: str, text: str = "") -> None:
        """Clicks an element as soon as it can be clicked."""
        from selenium.common.exceptions import WebDriverException

        def press() -> bool:
            try:
                self.one(selector, text).click()
            except WebDriverException:  # it moved, or is covered or disabled for a moment
                return False
            return True

        wait_until(press, WAIT_S, every=0.05, why=f"{selector} {text!r} can be clicked")

    def keys(self, *pressed: str) -> None:
        """Presses keys, wherever the focus is."""
        from selenium.webdriver import ActionChains

        for one in pressed:
            ActionChains(self.driver).send_keys(KEY.get(one, one)).perform()

    def sees(self, *words: str) -> bool:
        """Waits until the page shows all these words."""
        missing = lambda: [word for word in words if word not in self.text]  # noqa: E731
        wait_until(lambda: not missing(), WAIT_S, every=0.05, why=f"{words} in: {self.text}")
        return True

    @property
    def text(self) -> str:
        """Returns what the page shows."""
        return str(self.run("return document.body.innerText"))

    @property
    def hash(self) -> str:
        """Returns the part of the address that names the page."""
        return str(self.run("return location.hash"))

    def problems(self) -> list[str]:
        """Returns the problems in the browser's log, as a refused script, and clears it."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def close(self) -> None:
        """Ends the browser."""
        self.driver.quit()
