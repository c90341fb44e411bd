"""The dashboard benchmark sends the same requests as the pages."""

from collections.abc import Generator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext

from bench.dashboards import GROUP, PAGES, QUEUE
from skep import Skep
from tests.dashboard.browsing import Tab, browser, context
from tests.server.serving import Client, serving

__all__ = ["browser", "context"]


@pytest.fixture(scope="module")
def server(module_database_url: str) -> Generator[Client]:
    with Skep(module_database_url) as mq:
        mq.subscribe(GROUP, QUEUE)
        mq.queue(QUEUE).push(1)
    with serving(module_database_url) as running:
        yield running


@pytest.mark.parametrize("page", PAGES)
def test_requests_of_a_page(context: BrowserContext, server: Client, page: str):
    tab = Tab(context.new_page(), server.url)
    requested: set[str] = set()
    tab.page.on("request", lambda request: requested.add(urlsplit(request.url)._replace(scheme="", netloc="").geturl()))
    tab.page.goto(f"{server.url}/#/{page}")
    tab.page.wait_for_load_state("networkidle")
    assert {path for path in requested if path.startswith(("/api", "/metrics"))} == set(PAGES[page])
    tab.check()
