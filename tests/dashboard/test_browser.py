"""A browser that crashes fails one test, and not the tests that follow."""

import os
import signal
from collections.abc import Generator
from contextlib import suppress

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browsing import Tab, browser
from tests.server.serving import Client, serving, until

__all__ = ["browser"]


@pytest.fixture(scope="module")
def server(module_database_url: str) -> Generator[Client]:
    with serving(module_database_url) as running:
        yield running


@pytest.mark.parametrize("test", ["first", "next"])
def test_a_killed_browser_is_replaced(browser: Browser, server: Client, test: str):
    """Each of the two tests uses its browser and then kills it. Playwright notices only at its next call."""
    tab = Tab(browser.new_page(), server.url)
    tab.go("overview")
    tab.check()
    kill(browser)


def kill(browser: Browser) -> None:
    """Kill the process of the browser and wait until it has ended."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    (pid,) = (process["id"] for process in processes if process["type"] == "browser")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
