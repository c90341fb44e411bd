"""A database in which nothing has happened yet: every page says so, and how to begin."""

from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.axe import violations
from tests.dashboard.browsing import Tab, browser, shots
from tests.server.serving import Client, serving

__all__ = ["browser", "shots"]

WORDS = {
    "overview": "All is well",
    "queues": "There is no queue yet: the first push makes one.",
    "groups": "There is no such group. The first pop makes one.",
    "messages": "Choose a queue.",
    "dead-letters": "There are no dead letters.",
    "pipelines": "Nothing is archived yet; begin with skep pipeline archive QUEUE --archive /backup/skep.",
    "system": "Pushes are stored at once.",
}


@pytest.fixture(scope="module")
def bare(module_database_url: str) -> Generator[Client]:
    with serving(module_database_url) as running:
        yield running


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_every_page(browser: Browser, bare: Client, shots: Path, width: int, scheme: str):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    tab = Tab(context.new_page(), bare.url)
    wrong: list[str] = []
    for page, words in WORDS.items():
        tab.go(page)
        expect(tab.page.locator("main")).to_contain_text(words)
        tab.page.wait_for_load_state("networkidle")
        wrong += [f"{page}: {each}" for each in violations(tab.page)]
        tab.page.screenshot(path=shots / f"empty-{page}-{width}-{scheme}.png", full_page=True)
    assert wrong == []
    tab.check()
    context.close()
