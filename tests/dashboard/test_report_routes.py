"""Reports: for who may read every queue, by name and no other file, and in a sandbox from which nothing reaches out."""

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


@pytest.mark.parametrize("ask", [by_header, by_form])
def test_who_may_read_every_queue_gets_one(guarded: Client, ask: Callable[..., Answer]):
    answer = ask(guarded, "analytics-1.html", role="read-only")
    assert (answer.status, answer.body.decode()) == (200, EVIL)
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none';")
    assert "allow-" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert ask(guarded, "latest", role="read-only").status == 200
    assert ask(guarded, "analytics-1.html", role=None, grants={"orders": ["read"]}).status == 403
    assert ask(guarded, "analytics-1.html", role="write-only").status == 403


@pytest.mark.parametrize("body", [b"", b"token=", b"token=nonsense", b"other=1", b"\xff"])
def test_a_form_without_a_token(guarded: Client, body: bytes):
    assert guarded.post("/reports/latest", body).status in (400, 401)
    assert guarded.get("/reports/latest").status == 401


@pytest.mark.parametrize(
    "name",
    ["notes.txt", ".analytics-3.html", "folder.html", "..%2Foutside.html", "..", "no.html"],
)
def test_nothing_else_is_there(guarded: Client, name: str):
    assert by_header(guarded, name, role="admin").status == 404


def test_a_report_opens_and_nothing_in_it_runs(context: BrowserContext, guarded: Client):
    tab = Tab(context.new_page(), guarded.url)
    tab.go("pipelines")
    tab.page.get_by_label("Token or API key").fill(token(role="read-only"))
    tab.press("Sign in")
    expect(tab.card("Analytics").locator("tbody tr")).to_have_count(2)
    with context.expect_page() as opened:
        tab.page.get_by_role("button", name="Newest report: analytics-2.html").click()
    report = opened.value
    expect(report.locator("#found")).to_have_text("nothing ran")
    asked: list[str] = []
    report.on("requestfinished", lambda request: asked.append(request.url))
    report.reload()
    expect(report.locator("#found")).to_have_text("nothing ran")
    assert report.locator("h1").evaluate("(node) => getComputedStyle(node).color") == "rgb(1, 2, 3)"
    assert "token" not in report.url
    assert all("leak" not in url for url in asked)
    tab.check()


def test_who_sees_some_queues_is_not_told(context: BrowserContext, guarded: Client):
    tab = Tab(context.new_page(), guarded.url)
    tab.go("pipelines")
    tab.page.get_by_label("Token or API key").fill(token(role=None, grants={"orders": ["read"]}))
    tab.press("Sign in")
    expect(tab.card("Analytics")).to_contain_text("No folder of reports is set")
    expect(tab.page.get_by_role("button", name="Open")).to_have_count(0)
    tab.check()
