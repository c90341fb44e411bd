"""Every page shows the sample data, light and dark, wide and narrow, and scripts in the data do not run."""

import re
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard import sample_data
from tests.dashboard.axe import violations
from tests.dashboard.browsing import Tab, browser, context, screenshots, server, tab
from tests.server.serving import Client

__all__ = ["browser", "context", "screenshots", "server", "tab"]

ROUTES = {
    "overview": (("overview",), ".health"),
    "queues": (("queues",), "tbody tr"),
    "queue": (("queues", "orders"), ".options"),
    "groups": (("groups",), "tbody tr"),
    "group": (("groups", "shipping", "orders"), ".u-wrap"),
    "messages": (("messages",), "tbody tr"),
    "dead_letters": (("dead-letters",), ".dead-letter"),
    "pipelines": (("pipelines",), "tbody tr"),
    "system": (("system",), ".switch"),
}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")])
def test_every_page_fits(browser: Browser, server: Client, screenshots: Path, width: int, scheme: str):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    tab = Tab(context.new_page(), server.url)
    wrong: list[str] = []
    for name, (names, awaited) in ROUTES.items():
        tab.go(*names, query="?queue=orders" if name == "messages" else "")
        expect(tab.page.locator(awaited).first).to_be_visible()
        if name in ("overview", "queue", "group"):
            expect(tab.page.locator("canvas").nth(2)).to_be_visible()
        tab.page.wait_for_load_state("networkidle")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, name
        wrong += [f"{name}: {each}" for each in violations(tab.page)]
        tab.page.screenshot(path=screenshots / f"{name}-{width}-{scheme}.png", full_page=True)
    assert wrong == []
    background = tab.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background)[:3])) < 200) == (scheme == "dark")
    tab.check()
    context.close()


def test_overview_shows_warnings(tab: Tab):
    tab.go("overview")
    warnings = tab.page.locator(".health li")
    expect(warnings).to_contain_text(
        [
            "fraud on payments is paused: 140 pending messages",
            "shipping on orders is behind: 240 pending messages",
            "1 group is dead",
            "24 dead letters",
        ]
    )
    expect(tab.tile("Lag")).to_have_text("380")
    expect(tab.tile("Dead letters")).to_have_text("24")
    expect(tab.tile("Queues")).to_have_text("2,504")
    expect(tab.tile("Database")).to_contain_text("MB")
    expect(tab.tile("Servers")).to_have_text("1")
    expect(tab.row("shipping")).to_contain_text("240")
    tab.page.get_by_role("button", name="15 min").click()
    expect(tab.page.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")
    expect(tab.page.locator("canvas")).to_have_count(4)


def test_numbers_change_in_place(tab: Tab, server: Client, module_database_url: str):
    tab.go("queues", "emails")
    expect(tab.tile("Stored")).to_have_text("50")
    tab.page.evaluate("document.querySelector('.tile').dataset.marked = 'yes'")
    server.push("emails", *range(7))
    expect(tab.tile("Stored")).to_have_text("57")
    assert tab.page.evaluate("document.querySelector('.tile').dataset.marked") == "yes"
    server.pop("emails", autoAck="true")
    with psycopg.connect(module_database_url, autocommit=True) as db:
        db.execute("DELETE FROM skep.samples WHERE at > clock_timestamp() - interval '1 second'")


def test_queues_are_searched_and_sorted(tab: Tab):
    tab.go("queues")
    first = tab.page.locator("tbody tr").first
    expect(first).to_contain_text("orders")
    expect(tab.page.locator(".pager")).to_contain_text("of 2,504")
    tab.press("Next")
    expect(tab.page.locator(".pager")).to_contain_text("51")
    tab.page.get_by_label("Search queues").fill("nt.007")
    expect(tab.page.locator(".pager")).to_have_text("10 rows")
    expect(first).to_contain_text("tenant.0070")
    tab.press("Queue")
    tab.press("Queue")
    expect(first).to_contain_text("tenant.0079")
    tab.page.get_by_label("Search queues").fill("shop")
    expect(tab.page.locator("tbody tr")).to_have_count(2)  # the namespace matches


def test_one_queue(tab: Tab):
    tab.go("queues")
    tab.page.get_by_role("link", name="orders").click()
    expect(tab.tile("Partitions")).to_have_text("12")
    expect(tab.page.locator("canvas")).to_have_count(3)
    expect(tab.card("Push and ack rates")).to_contain_text("shipping")
    partitions = tab.card("Partitions")
    expect(partitions).to_contain_text(re.compile("12 partitions.* 18 % of all messages, 2.1 times the average"))
    expect(partitions.locator("tbody tr").first).to_contain_text("customer-2")
    partitions.get_by_role("combobox").select_option("pushed")
    expect(partitions.locator("tbody tr").first).to_contain_text("customer-1")
    partitions.get_by_role("combobox").select_option("oldest")
    expect(partitions.locator("tbody tr").first).to_contain_text(re.compile(r"3\d min"))
    partitions.get_by_role("combobox").select_option("rate")
    expect(partitions.locator("tbody tr").first).to_contain_text("customer-1")
    holders = tab.card("Retention by group")
    expect(holders.locator("tr", has_text="shipping")).to_contain_text("6 partitions")
    expect(holders.locator("tr", has_text="legacy-export")).to_contain_text("none (dead)")


def test_groups_and_one_group(tab: Tab):
    tab.go("groups")
    expect(tab.row("legacy-export")).to_contain_text("dead")
    tab.page.get_by_label("Status").select_option("PAUSED")
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    tab.page.get_by_role("link", name="fraud").click()
    expect(tab.tile("Lag")).to_have_text("140")
    expect(tab.page.locator("h1 .status")).to_have_text("paused")
    expect(tab.page.locator("canvas")).to_have_count(3)


def test_start_position_of_a_group(tab: Tab):
    """The card shows which subscription determines the start in a partition."""
    tab.go("groups", "shipping", "orders")
    start = tab.card("Start position")
    start.locator("[name=start-partition]").fill("nowhere")
    start.locator("[name=start-partition]").press("Tab")
    expect(start).to_contain_text("determines the start: mode")
    expect(start).to_contain_text("The partition does not exist yet.")


def test_clients_and_leases_of_a_group(tab: Tab, server: Client):
    tab.go("groups", "shipping", "orders")
    leases = tab.card("Leases")
    expect(leases).to_contain_text("1 active lease")
    expect(leases.locator("tbody tr")).to_contain_text("customer-0")
    expect(tab.card("Clients")).to_contain_text("No client has popped from this server.")
    server.pop("payments", consumerGroup="ledger", batch=1)
    tab.go("groups", "ledger", "payments")
    expect(tab.card("Clients").locator("tbody tr")).to_contain_text("127.0.0.1")
    expect(tab.card("Leases")).to_contain_text("No active leases.")


def test_pipelines(tab: Tab):
    tab.go("pipelines")
    expect(tab.tile("Archived")).to_have_text("150")
    expect(tab.tile("Not archived")).to_have_text("50")
    expect(tab.tile("Archive run")).to_have_text("idle")
    expect(tab.card("Archived queues").locator("tbody tr")).to_contain_text("/backup/skep")
    runs = tab.card("Last archive runs").locator("tbody tr")
    expect(runs).to_have_count(3)
    expect(runs.first).to_contain_text("interrupted")
    expect(tab.card("Analytics reports")).to_contain_text("SKEP_REPORTS")


def test_messages_by_time_and_by_offset(tab: Tab, screenshots: Path):
    tab.go("messages")
    tab.page.get_by_label("Queue").fill("orders")
    tab.page.get_by_label("Partition").fill("customer-2")
    tab.press("Show")
    expect(tab.page.locator("tbody tr")).to_have_count(50)
    expect(tab.page.locator("tbody tr").first).to_contain_text("93")
    tab.page.get_by_label("From offset").fill("90")
    tab.press("Show")
    expect(tab.page.locator("tbody tr")).to_have_count(4)
    expect(tab.page.locator("tbody tr").first).to_contain_text("shipping")
    tab.page.get_by_role("link", name="93", exact=True).click()
    expect(tab.page.locator(".payload").first).to_contain_text('"sku"')
    groups = tab.page.locator("h3", has_text="Groups").locator("xpath=following-sibling::div[1]")
    expect(groups.locator("tr", has_text="billing")).to_contain_text("completed")
    expect(groups.locator("tr", has_text="shipping")).to_contain_text("yes")
    assert violations(tab.page) == []
    tab.page.screenshot(path=screenshots / "message-1280-light.png", full_page=True)


def test_traces_of_a_message(tab: Tab, server: Client):
    (message,) = server.get("/api/v1/messages", queue="payments", limit=1, **{"from": "1970-01-01T00:00:00Z"}).json[
        "messages"
    ]
    trace = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "data": {"text": "<b>checked</b>"},
    }
    assert server.post("/api/v1/traces", trace | {"eventType": "step"}).status == 201
    tab.go("messages", query=f"?queue=payments&id={message['id']}")
    expect(tab.row("checked")).to_contain_text("step")


def test_hostile_data_is_text(tab: Tab, screenshots: Path):
    tab.go("queues", sample_data.EVIL)
    expect(tab.page.locator("h1")).to_have_text(sample_data.EVIL)
    tab.page.get_by_role("link", name="Messages", exact=True).last.click()
    tab.page.get_by_role("link", name="0", exact=True).click()
    expect(tab.page.locator(".payload").first).to_contain_text("<script>window.pwned='payload'</script>")
    expect(tab.page.locator(".payload").first).to_contain_text("12345678901234567890")  # not as a float
    tab.go("groups", "<i>evil</i>", sample_data.EVIL)
    expect(tab.page.locator("h1")).to_contain_text("<i>evil</i>")
    tab.go("dead-letters")
    tab.page.locator(".dead-letter", has_text="<i>evil</i>").locator("summary").click()
    expect(tab.page.locator(".dead-letter[open]")).to_contain_text("<svg onload")
    assert violations(tab.page) == []
    tab.page.screenshot(path=screenshots / "dead_letter-1280-light.png")
    assert tab.page.locator("main img, main svg, main i i, main b b").count() == 0


def test_the_user_switches_the_theme(tab: Tab):
    tab.go("overview")
    theme = tab.page.locator("html")
    expect(theme).to_have_attribute("data-theme", "light")
    tab.page.get_by_label("Switch to dark theme").click()
    expect(theme).to_have_attribute("data-theme", "dark")
    tab.page.reload()
    expect(theme).to_have_attribute("data-theme", "dark")


def test_things_that_do_not_exist(tab: Tab):
    tab.go("queues", "missing")
    expect(tab.page.locator(".failure")).to_contain_text('"missing"')
    tab.go("groups", "missing", "orders")
    expect(tab.page.locator("main")).to_contain_text("has no subscription")
    tab.page.goto(f"{tab.url}/#/nowhere")
    expect(tab.page.locator("main")).to_contain_text("Page not found")
