"""The pages of an empty database: each says that it is empty and how to start."""

from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.axe import violations
from tests.dashboard.browsing import Tab, browser, screenshots
from tests.server.serving import Client, serving

__all__ = ["browser", "screenshots"]

TEXTS = {
    "overview": "No warnings",
    "queues": "No queues yet. The first push creates one.",
    "groups": "No groups yet. The first pop or subscription creates one.",
    "messages": "Select a queue.",
    "dead-letters": "No dead letters.",
    "pipelines": "skep pipeline archive QUEUE --archive /backup/skep",
    "system": "Off: pushes are stored in their queues.",
}


@pytest.fixture(scope="module")
def server(module_database_url: str) -> Generator[Client]:
    with serving(module_database_url) as running:
        yield running


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_every_page(browser: Browser, server: Client, screenshots: Path, width: int, scheme: str):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    tab = Tab(context.new_page(), server.url)
    wrong: list[str] = []
    for page, text in TEXTS.items():
        tab.go(page)
        expect(tab.page.locator("main")).to_contain_text(text)
        tab.page.wait_for_load_state("networkidle")
        wrong += [f"{page}: {each}" for each in violations(tab.page)]
        tab.page.screenshot(path=screenshots / f"empty-{page}-{width}-{scheme}.png", full_page=True)
    assert wrong == []
    tab.check()
    context.close()
