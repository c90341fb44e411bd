"""Routes of reports: they require permission to read every queue, serve reports only, and sandbox them."""

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.dashboard.browsing import Tab, browser, context
from tests.server.serving import Answer, Client, serving
from tests.unit.tokens import SECRET, token

__all__ = ["browser", "context"]

EVIL = """<!doctype html><title>Report</title><style>h1 { color: rgb(1, 2, 3); }</style><h1>Numbers</h1>
<p id="found">nothing ran</p><img src="http://127.0.0.1:1/leak"><script>
document.getElementById("found").textContent = "ran: " + sessionStorage.getItem("skep.token");
</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    for age, name in enumerate(["analytics-2.html", "analytics-1.html", "notes.txt", ".analytics-3.html"]):
        (folder / name).write_text(EVIL)
        os.utime(folder / name, (1_000_000 - age, 1_000_000 - age))
    (folder / "folder.html").mkdir()
    (folder.parent / "outside.html").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def guarded(module_database_url: str, folder: Path) -> Generator[Client]:
    with serving(module_database_url, auth=True, jwt_secret=SECRET, reports=folder) as running:
        yield running


def bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(**claims)}"}


def by_header(client: Client, name: str, **claims: Any) -> Answer:
    return client.call("GET", f"/reports/{name}", headers=bearer(**claims))


def by_form(client: Client, name: str, **claims: Any) -> Answer:
    return client.post(f"/reports/{name}", urlencode({"token": token(**claims)}).encode())


@pytest.mark.parametrize("request_report", [by_header, by_form])
def test_a_report_requires_read_on_every_queue(guarded: Client, request_report: Callable[..., Answer]):
    response = request_report(guarded, "analytics-1.html", role="read-only")
    assert (response.status, response.body.decode()) == (200, EVIL)
    assert response.headers["content-security-policy"].startswith("sandbox; default-src 'none';")
    assert "allow-" not in response.headers["content-security-policy"]
    assert response.headers["cache-control"] == "no-store"
    assert request_report(guarded, "latest", role="read-only").status == 200
    assert request_report(guarded, "analytics-1.html", role=None, grants={"orders": ["read"]}).status == 403
    assert request_report(guarded, "analytics-1.html", role="write-only").status == 403


@pytest.mark.parametrize("body", [b"", b"token=", b"token=nonsense", b"other=1", b"\xff"])
def test_a_form_without_a_token(guarded: Client, body: bytes):
    assert guarded.post("/reports/latest", body).status in (400, 401)
    assert guarded.get("/reports/latest").status == 401


@pytest.mark.parametrize(
    "name",
    ["notes.txt", ".analytics-3.html", "folder.html", "..%2Foutside.html", "..", "no.html"],
)
def test_other_files_are_not_served(guarded: Client, name: str):
    assert by_header(guarded, name, role="admin").status == 404


def test_scripts_in_a_report_do_not_run(context: BrowserContext, guarded: Client):
    tab = Tab(context.new_page(), guarded.url)
    tab.go("pipelines")
    tab.page.get_by_label("Token or API key").fill(token(role="read-only"))
    tab.press("Sign in")
    expect(tab.card("Analytics").locator("tbody tr")).to_have_count(2)
    with context.expect_page() as opened:
        tab.page.get_by_role("button", name="Newest report: analytics-2.html").click()
    report = opened.value
    expect(report.locator("#found")).to_have_text("nothing ran")
    requested: list[str] = []
    report.on("requestfinished", lambda request: requested.append(request.url))
    report.reload()
    expect(report.locator("#found")).to_have_text("nothing ran")
    assert report.locator("h1").evaluate("(node) => getComputedStyle(node).color") == "rgb(1, 2, 3)"
    assert "token" not in report.url
    assert all("leak" not in url for url in requested)
    tab.check()


def test_a_user_with_some_queues_sees_no_reports(context: BrowserContext, guarded: Client):
    tab = Tab(context.new_page(), guarded.url)
    tab.go("pipelines")
    tab.page.get_by_label("Token or API key").fill(token(role=None, grants={"orders": ["read"]}))
    tab.press("Sign in")
    expect(tab.card("Analytics")).to_contain_text("No report folder is available")
    expect(tab.page.get_by_role("button", name="Open")).to_have_count(0)
    tab.check()
