"""Sign in and sign out. A user sees only what the token permits, and signing out removes the token."""

from collections.abc import Generator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from skep import Skep
from tests.dashboard.axe import violations
from tests.dashboard.browsing import Tab, browser, context
from tests.server.serving import Client, serving
from tests.unit.tokens import SECRET, token

__all__ = ["browser", "context"]


@pytest.fixture(scope="module")
def guarded(module_database_url: str) -> Generator[Client]:
    with Skep(module_database_url) as mq:
        mq.queue("orders").push({"n": 1})
        mq.queue("secret").push({"n": 2})
        for queue in ("orders", "secret"):
            mq.queue(queue).pop(group="g").dead_letter(None, "broken")
    with serving(module_database_url, auth=True, jwt_secret=SECRET) as running:
        yield running


@pytest.fixture
def tab(context: BrowserContext, guarded: Client) -> Generator[Tab]:
    new_tab = Tab(context.new_page(), guarded.url)
    yield new_tab
    new_tab.check()


def sign_in(tab: Tab, key: str) -> None:
    tab.page.get_by_label("Token or API key").fill(key)
    tab.press("Sign in")


def test_sign_in_with_a_token(tab: Tab):
    tab.go()
    expect(tab.page.get_by_label("Token or API key")).to_be_visible()
    assert violations(tab.page) == []
    sign_in(tab, "nonsense")
    expect(tab.page.locator(".failure")).to_be_visible()
    sign_in(tab, token(role="admin"))
    expect(tab.tile("Queues")).to_have_text("2")
    stored = tab.page.evaluate("[Object.keys(sessionStorage), Object.keys(localStorage), document.cookie]")
    assert stored == [["skep.token"], [], ""]
    tab.press("Sign out")
    expect(tab.page.get_by_label("Token or API key")).to_be_visible()
    assert tab.page.evaluate("Object.keys(sessionStorage)") == []


def test_sign_in_with_an_api_key(tab: Tab, guarded: Client):
    with Skep(guarded.app.config.database_url) as mq:
        key = mq.create_api_key("browser", role="read-only")
    tab.go("queues")
    sign_in(tab, key if isinstance(key, str) else key[0])
    expect(tab.row("orders")).to_be_visible()


def test_a_read_only_user_sees_no_buttons(tab: Tab):
    tab.go("dead-letters")
    sign_in(tab, token(role="read-only"))
    expect(tab.row("orders")).to_contain_text("broken")
    expect(tab.page.get_by_role("button", name="Redrive all")).to_have_count(0)
    tab.go("queues", "orders")
    expect(tab.page.locator(".options")).to_be_visible()
    expect(tab.page.get_by_role("button", name="Edit")).to_have_count(0)
    tab.go("groups", "g", "orders")
    expect(tab.tile("Dead letters")).to_have_text("1")
    expect(tab.page.get_by_role("button", name="Pause")).to_have_count(0)
    tab.go("system")
    expect(tab.card("Tables")).to_be_visible()
    expect(tab.page.get_by_role("switch")).to_have_count(0)


def test_a_user_with_a_grant_for_one_queue(tab: Tab):
    tab.go("queues")
    sign_in(tab, token(role=None, grants={"orders": ["read"]}))
    expect(tab.row("orders")).to_be_visible()
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    tab.go("overview")
    expect(tab.tile("Dead letters")).to_have_text("1")
    expect(tab.tile("Database")).to_have_count(0)
    held: list[Route] = []
    tab.page.route("**/api/v1/queues/secret", lambda route: held.append(route))  # noqa: PLW0108 -- playwright needs a Python function
    tab.go("queues", "secret")
    tab.page.wait_for_timeout(300)
    expect(tab.page.locator(".failure")).to_have_count(0)
    held[0].continue_()
    expect(tab.page.locator(".failure")).to_contain_text("You do not have permission")
    tab.go("system")
    expect(tab.page.locator(".failure").first).to_contain_text("You do not have permission")


def test_cached_responses_respect_permissions(guarded: Client):
    """The server shares a cached response only between users with the same permissions."""

    def queues(**claims: Any) -> list[str]:
        headers = {"Authorization": f"Bearer {token(**claims)}", "Cache-Control": "max-age=30"}
        response = guarded.call("GET", "/api/v1/dashboard/queues", headers=headers)
        return [row["name"] for row in response.json["queues"]]

    assert queues(role="admin", sub="ann") == ["orders", "secret"]
    assert queues(role=None, grants={"orders": ["read"]}, sub="ann") == ["orders"]
    assert queues(role="admin", sub="bob") == ["orders", "secret"]
    assert queues(role=None, grants={"secret": ["read"]}) == ["secret"]
