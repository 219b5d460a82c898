"""A real browser for tests: Debian's Chromium without a window, with a profile of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

DEADLINE_S = 180
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)


def require_browser() -> None:
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("chromium and chromedriver are not installed; scripts/ensure-chromium does it")


class Browser:
    """Finds things as people do, and waits for them."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def find(self, selector: str, text: str | None = None) -> WebElement:
        """The first visible element of a CSS selector, with a text in it; waited for."""

        def look() -> WebElement | None:
            for each in self.driver.find_elements(By.CSS_SELECTOR, selector):
                if each.is_displayed() and (text is None or text in each.text):
                    return each
            return None

        return self.wait(look, f"{selector} with {text!r}")

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return self.wait(lambda: [[each.text for each in self.all(selector)]], selector)[0]

    def click(self, selector: str, text: str | None = None) -> None:
        self.find(selector, text).click()

    def type(self, selector: str, text: str) -> None:
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def wait(self, look: Callable[[], Any], what: str) -> Any:
        """What `look` finds, as soon as it finds something."""

        def attempt(_driver: Any) -> Any:
            try:
                return look()
            except StaleElementReferenceException:
                return None

        def says() -> str:
            try:
                return self.find_now("body")
            except WebDriverException as error:
                return str(error)

        try:
            return WebDriverWait(self.driver, DEADLINE_S, poll_frequency=0.05).until(attempt)
        except WebDriverException:
            raise AssertionError(f"never seen: {what}; the page says:\n{says()}") from None

    def find_now(self, selector: str) -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def log(self) -> list[str]:
        """What the browser has complained about since it was last asked: broken scripts, refused by the policy."""
        return [f"{each['level']} {each['message']}" for each in self.driver.get_log("browser")]

    def look_like(self, *, width: int = 1280, height: int = 900, **features: str) -> None:
        """Take a size, and preferences such as prefers_color_scheme."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        wanted = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    require_browser()
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    driver.set_page_load_timeout(DEADLINE_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
