"""Every page shows what is so, light and dark, wide and narrow, and nothing that is in the data runs."""

import re
from pathlib import Path

import psycopg
import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard import story
from tests.dashboard.axe import violations
from tests.dashboard.browsing import Tab, browser, context, shop, shots, tab
from tests.server.serving import Client

__all__ = ["browser", "context", "shop", "shots", "tab"]

PLACES = {
    "overview": (("overview",), ".health"),
    "queues": (("queues",), "tbody tr"),
    "queue": (("queues", "orders"), ".options"),
    "groups": (("groups",), "tbody tr"),
    "group": (("groups", "shipping", "orders"), ".u-wrap"),
    "messages": (("messages",), "tbody tr"),
    "dead_letters": (("dead-letters",), ".letter"),
    "pipelines": (("pipelines",), "tbody tr"),
    "system": (("system",), ".switch"),
}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")])
def test_every_page_fits(browser: Browser, shop: Client, shots: Path, width: int, scheme: str):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # pyright: ignore[reportArgumentType]
    tab = Tab(context.new_page(), shop.url)
    wrong: list[str] = []
    for name, (names, awaited) in PLACES.items():
        tab.go(*names, query="?queue=orders" if name == "messages" else "")
        expect(tab.page.locator(awaited).first).to_be_visible()
        if name in ("overview", "queue", "group"):
            expect(tab.page.locator("canvas").nth(2)).to_be_visible()
        tab.page.wait_for_load_state("networkidle")
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, name
        wrong += [f"{name}: {each}" for each in violations(tab.page)]
        tab.page.screenshot(path=shots / f"{name}-{width}-{scheme}.png", full_page=True)
    assert wrong == []
    paper = tab.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 200) == (scheme == "dark")
    tab.check()
    context.close()


def test_overview_tells_what_is_wrong(tab: Tab):
    tab.go("overview")
    health = tab.page.locator(".health")
    expect(health).to_contain_text("fraud on payments is paused: 140 messages wait")
    expect(health).to_contain_text("shipping on orders is behind: 240 messages wait")
    expect(health).to_contain_text("1 group gave no sign of life")
    expect(health).to_contain_text("24 dead letters wait")
    expect(tab.tile("Waiting")).to_have_text("380")
    expect(tab.tile("Dead letters")).to_have_text("24")
    expect(tab.tile("Queues")).to_have_text("2,504")
    expect(tab.tile("Database")).to_contain_text("MB")
    expect(tab.tile("Servers")).to_have_text("1")
    expect(tab.row("shipping")).to_contain_text("240")
    tab.page.get_by_role("button", name="15 min").click()
    expect(tab.page.get_by_role("button", name="15 min")).to_have_attribute("aria-pressed", "true")
    expect(tab.page.locator("canvas")).to_have_count(4)


def test_numbers_change_in_place(tab: Tab, shop: Client, module_database_url: str):
    tab.go("queues", "emails")
    expect(tab.tile("Kept")).to_have_text("50")
    tab.page.evaluate("document.querySelector('.tile').dataset.mine = 'yes'")
    shop.push("emails", *range(7))
    expect(tab.tile("Kept")).to_have_text("57")
    assert tab.page.evaluate("document.querySelector('.tile').dataset.mine") == "yes"
    shop.pop("emails", autoAck="true")
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
    expect(tab.page.locator("tbody tr")).to_have_count(2)  # by their namespace


def test_one_queue(tab: Tab):
    tab.go("queues")
    tab.page.get_by_role("link", name="orders").click()
    expect(tab.tile("Partitions")).to_have_text("12")
    expect(tab.page.locator("canvas")).to_have_count(3)
    expect(tab.card("Rates")).to_contain_text("shipping")
    lanes = tab.card("Partitions")
    expect(lanes).to_contain_text("12 partitions; the busiest got 18 % of all messages, 2.1 times the average.")
    expect(lanes.locator("tbody tr").first).to_contain_text("customer-2")
    lanes.get_by_role("combobox").select_option("pushed")
    expect(lanes.locator("tbody tr").first).to_contain_text("customer-1")
    lanes.get_by_role("combobox").select_option("oldest")
    expect(lanes.locator("tbody tr").first).to_contain_text(re.compile(r"3\d min"))
    lanes.get_by_role("combobox").select_option("rate")
    expect(lanes.locator("tbody tr").first).to_contain_text("customer-1")
    expect(tab.card("Retention floor").locator("tr", has_text="shipping")).to_contain_text("6 partitions")
    expect(tab.card("Retention floor").locator("tr", has_text="legacy-export")).to_contain_text("it is dead")


def test_groups_and_one_of_them(tab: Tab):
    tab.go("groups")
    expect(tab.row("legacy-export")).to_contain_text("dead")
    tab.page.get_by_label("Status").select_option("PAUSED")
    expect(tab.page.locator("tbody tr")).to_have_count(1)
    tab.page.get_by_role("link", name="fraud").click()
    expect(tab.tile("Lag")).to_have_text("140")
    expect(tab.page.locator("h1 .status")).to_have_text("paused")
    expect(tab.page.locator("canvas")).to_have_count(3)


def test_where_a_group_starts(tab: Tab):
    """Which subscription decides, in a partition that can be chosen."""
    tab.go("groups", "shipping", "orders")
    start = tab.card("Start")
    start.locator("[name=start-partition]").fill("nowhere")
    start.locator("[name=start-partition]").press("Tab")
    expect(start).to_contain_text("decides: mode")
    expect(start).to_contain_text("The partition does not exist yet.")


def test_members_and_leases_of_a_group(tab: Tab, shop: Client):
    tab.go("groups", "shipping", "orders")
    leases = tab.card("Leases")
    expect(leases).to_contain_text("1 lease is out, each what one pop has got")
    expect(leases.locator("tbody tr")).to_contain_text("customer-0")
    expect(tab.card("Members")).to_contain_text("Nobody has popped here.")
    shop.pop("payments", consumerGroup="ledger", batch=1)
    tab.go("groups", "ledger", "payments")
    expect(tab.card("Members").locator("tbody tr")).to_contain_text("127.0.0.1")
    expect(tab.card("Leases")).to_contain_text("Nothing is leased now.")


def test_pipelines(tab: Tab):
    tab.go("pipelines")
    expect(tab.tile("Archived")).to_have_text("150")
    expect(tab.tile("Not archived yet")).to_have_text("50")
    expect(tab.tile("Job")).to_have_text("idle")
    expect(tab.card("Archive").locator("tbody tr")).to_contain_text("/backup/skep")
    runs = tab.card("Last runs").locator("tbody tr")
    expect(runs).to_have_count(3)
    expect(runs.first).to_contain_text("stopped")
    expect(tab.card("Analytics")).to_contain_text("No folder of reports is set; give the server SKEP_REPORTS")


def test_messages_by_time_and_by_offset(tab: Tab, shots: Path):
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
    tab.page.screenshot(path=shots / "message-1280-light.png", full_page=True)


def test_traces_of_a_message(tab: Tab, shop: Client):
    (message,) = shop.get("/api/v1/messages", queue="payments", limit=1, **{"from": "1970-01-01T00:00:00Z"}).json[
        "messages"
    ]
    trace = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "data": {"text": "<b>checked</b>"},
    }
    assert shop.post("/api/v1/traces", trace | {"eventType": "step"}).status == 201
    tab.go("messages", query=f"?queue=payments&id={message['id']}")
    expect(tab.row("checked")).to_contain_text("step")


def test_hostile_data_is_text(tab: Tab, shots: Path):
    tab.go("queues", story.EVIL)
    expect(tab.page.locator("h1")).to_have_text(story.EVIL)
    tab.page.get_by_role("link", name="Messages").last.click()
    tab.page.get_by_role("link", name="0", exact=True).click()
    expect(tab.page.locator(".payload").first).to_contain_text("<script>window.pwned='payload'</script>")
    expect(tab.page.locator(".payload").first).to_contain_text("12345678901234567890")  # not as a float
    tab.go("groups", "<i>evil</i>", story.EVIL)
    expect(tab.page.locator("h1")).to_contain_text("<i>evil</i>")
    tab.go("dead-letters")
    tab.page.locator(".letter", has_text="<i>evil</i>").locator("summary").click()
    expect(tab.page.locator(".letter[open]")).to_contain_text("<svg onload")
    assert violations(tab.page) == []
    tab.page.screenshot(path=shots / "letter-1280-light.png")
    assert tab.page.locator("main img, main svg, main i i, main b b").count() == 0


def test_light_and_dark_by_hand(tab: Tab):
    tab.go("overview")
    theme = tab.page.locator("html")
    expect(theme).to_have_attribute("data-theme", "light")
    tab.page.get_by_label("Switch to dark").click()
    expect(theme).to_have_attribute("data-theme", "dark")
    tab.page.reload()
    expect(theme).to_have_attribute("data-theme", "dark")


def test_what_is_not_there(tab: Tab):
    tab.go("queues", "nobody")
    expect(tab.page.locator(".failure")).to_contain_text('there is no queue "nobody"')
    tab.go("groups", "nobody", "orders")
    expect(tab.page.locator("main")).to_contain_text("has no subscription")
    tab.page.goto(f"{tab.url}/#/nowhere")
    expect(tab.page.locator("main")).to_contain_text("no such page")
