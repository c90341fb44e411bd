"""The analytics report in a real browser: no requests, no scripts, readable in both themes."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from skep.pipelines.report.page import render
from tests.dashboard.browsing import browser
from tests.unit.test_report import HOSTILE, full

__all__ = ["browser"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_a_report_with_hostile_names(browser: Browser, tmp_path: Path, scheme: str, width: int):
    path = tmp_path / "report.html"
    path.write_text(render(full(HOSTILE)), encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    page = context.new_page()
    requests, logged = list[str](), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: logged.append(message.text))
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.goto(path.as_uri())
    assert page.evaluate("window.pwned") is None
    assert (requests, logged) == ([path.as_uri()], [])
    assert page.locator("svg").count() == 8
    assert page.locator("details").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colours = "getComputedStyle(document.documentElement).backgroundColor"
    assert page.evaluate(colours) == {"light": "rgb(247, 246, 243)", "dark": "rgb(23, 22, 19)"}[scheme]
    context.close()
