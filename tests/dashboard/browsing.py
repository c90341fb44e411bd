"""A real browser on a server with sample data. Errors in the page and requests to other hosts fail the test."""

import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    BrowserType,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    expect,
    sync_playwright,
)

from skep.server.api.page import STATIC
from tests.dashboard import sample_data
from tests.server.serving import Client, serving

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
# Chromium logs these responses as errors. The tests check what the page does with them.
EXPECTED_STATUS = re.compile(r"status of (400|401|403|404)")


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test because something is missing on this machine; fail if SKEP_TEST_ALL is 1."""
    if os.environ.get("SKEP_TEST_ALL") == "1":
        pytest.fail(f"{reason} (and SKEP_TEST_ALL=1)")
    pytest.skip(reason)


class Tab:
    """A browser tab with the dashboard. It records console errors and the hosts of requests."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", self._record)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        expect.set_options(timeout=10_000)
        page.set_default_timeout(10_000)

    def _record(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not EXPECTED_STATUS.search(message.text):
            self.errors.append(message.text)

    def go(self, *names: str, query: str = "") -> None:
        route = "/".join(quote(name, safe="") for name in names)
        self.page.goto(f"{self.url}/#/{route}{query}")
        expect(self.page.locator("main h1")).to_be_visible()

    def card(self, title: str) -> Locator:
        return self.page.locator("section.card").filter(has=self.page.locator("h2", has_text=title))

    def row(self, text: str) -> Locator:
        return self.page.locator("tbody tr").filter(has_text=text).first

    def tile(self, label: str) -> Locator:
        exact = self.page.locator(".label", has_text=re.compile(f"^{label}$"))
        return self.page.locator(".tile").filter(has=exact).locator("strong")

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).first.click()

    @property
    def dialog(self) -> Locator:
        return self.page.locator("dialog")

    def notice(self, text: str) -> None:
        expect(self.page.locator(".notice")).to_contain_text(text)

    def check(self) -> None:
        assert self.errors == []
        assert self.hosts <= {urlsplit(self.url).netloc}, "the page sends requests to its own server only"
        assert self.page.evaluate("window.pwned") is None, "scripts in the data do not run"


class Launcher:
    """Starts a browser, and replaces it after a crash: a crash must not fail the tests that follow."""

    def __init__(self, browser_type: BrowserType, program: str) -> None:
        self._browser_type = browser_type
        self._program = program
        self._browser: Browser | None = None

    def running_browser(self) -> Browser:
        if self._browser is None or not _is_alive(self._browser):
            self._browser = self._browser_type.launch(executable_path=self._program, args=FLAGS)
        return self._browser

    def close(self) -> None:
        if self._browser is not None:
            self._browser.close()


def _is_alive(browser: Browser) -> bool:
    """Ask the browser itself: `is_connected` only changes while Playwright handles a call."""
    try:
        browser.new_context().close()
    except Error:
        return False
    return True


@pytest.fixture(scope="module")
def launcher() -> Generator[Launcher]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        skip_or_fail("Chromium not found; on Debian: apt-get install chromium")
    if not (STATIC / "vendor" / "preact.js").is_file():
        skip_or_fail("the libraries of the dashboard are missing; run: python -m skep.dashboard.fetch")
    with sync_playwright() as playwright:
        launcher = Launcher(playwright.chromium, found)
        yield launcher
        launcher.close()


@pytest.fixture
def browser(launcher: Launcher) -> Browser:
    return launcher.running_browser()


@pytest.fixture(scope="module")
def server(module_database_url: str) -> Generator[Client]:
    """A server whose database contains the sample data."""
    sample_data.write(module_database_url)
    with serving(module_database_url) as running:
        yield running


@pytest.fixture
def context(browser: Browser) -> Generator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context
    context.close()


@pytest.fixture
def tab(context: BrowserContext, server: Client) -> Generator[Tab]:
    new_tab = Tab(context.new_page(), server.url)
    yield new_tab
    new_tab.check()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for screenshots: SKEP_TEST_SCREENSHOTS, or a temporary folder."""
    given = os.environ.get("SKEP_TEST_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
