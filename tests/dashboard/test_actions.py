"""Every button says exactly what will happen, does nothing when one thinks better of it, and does it otherwise."""

from playwright.sync_api import expect

from skep import Skep
from tests.dashboard.browsing import Tab, browser, context, shop, tab
from tests.server.serving import Client, until

__all__ = ["browser", "context", "shop", "tab"]


def group(shop: Client, name: str, queue: str):
    return shop.get("/api/v1/groups", group=name, queue=queue).json[0]


def test_pause_and_resume(tab: Tab, shop: Client):
    tab.go("groups", "billing", "orders")
    tab.press("Pause")
    expect(tab.dialog).to_contain_text(
        "billing gets nothing from orders until it is resumed. 0 messages stay owed to it"
    )
    tab.dialog.get_by_role("button", name="Cancel").click()
    expect(tab.dialog).to_have_count(0)
    assert group(shop, "billing", "orders")["status"] == "ACTIVE"
    tab.press("Pause")
    tab.press("Pause the group")
    tab.notice("billing is paused")
    expect(tab.page.locator("h1 .status")).to_have_text("paused")
    assert group(shop, "billing", "orders")["status"] == "PAUSED"
    tab.press("Resume")
    tab.press("Resume the group")
    expect(tab.page.locator("h1 .status")).to_have_text("active")


def test_who_goes_elsewhere_has_not_said_yes(tab: Tab, shop: Client):
    tab.go("groups", "billing", "orders")
    tab.press("Pause")
    expect(tab.dialog).to_be_visible()
    tab.go("queues")
    expect(tab.dialog).to_have_count(0)
    assert group(shop, "billing", "orders")["status"] == "ACTIVE"


def test_seek_says_how_many(tab: Tab, shop: Client):
    tab.go("groups", "shipping", "orders")
    tab.press("Seek")
    expect(tab.dialog).to_contain_text(
        "In 12 partitions: nothing is delivered again; 240 messages are skipped and never delivered to it"
    )
    expect(tab.dialog).to_contain_text("1 lease is dropped")
    tab.page.get_by_label("to the beginning").check()
    expect(tab.dialog).to_contain_text(
        "360 messages already done are delivered again; nothing is skipped; 600 messages wait afterwards"
    )
    tab.page.get_by_label("to a time").check()
    expect(tab.dialog.get_by_role("button", name="Move the group")).to_be_disabled()
    tab.page.get_by_label("Time", exact=True).fill("2020-01-01T00:00:00")
    expect(tab.dialog).to_contain_text("600 messages wait afterwards")
    tab.page.get_by_label("to the end").check()
    expect(tab.dialog).to_contain_text("0 messages wait afterwards")
    tab.press("Move the group")
    tab.notice("The group is moved")
    expect(tab.tile("Lag")).to_have_text("0")
    assert group(shop, "shipping", "orders")["lag"] == 0


def test_cancel_a_group(tab: Tab, shop: Client):
    tab.go("groups", "fraud", "payments")
    tab.page.locator("header").get_by_role("button", name="Cancel").click()
    expect(tab.dialog).to_contain_text("140 messages it has not done are no longer owed to it and may be deleted")
    tab.press("Cancel the group")
    expect(tab.page.locator("h1 .status")).to_have_text("cancelled")
    assert group(shop, "fraud", "payments")["status"] == "CANCELLED"


def test_options_are_reviewed(tab: Tab, shop: Client):
    tab.go("queues", "orders")
    tab.press("Edit")
    tab.dialog.locator("[name=lease_time]").fill("60")
    tab.dialog.locator("[name=retention_seconds]").fill("")
    tab.dialog.locator("[name=partial_failure]").select_option("retry")
    tab.press("Review")
    expect(tab.dialog).to_contain_text("lease time (s): 300 → 60")
    expect(tab.dialog).to_contain_text("retention (s): 604800 → no limit")
    expect(tab.dialog).to_contain_text("the queue keeps 600 messages now")
    tab.press("Change")
    tab.notice("The options are changed")
    expect(tab.page.locator(".options div", has_text="lease time")).to_contain_text("60")
    options = shop.get("/api/v1/queues/orders").json["options"]
    assert (options["lease_time"], options["retention_seconds"], options["partial_failure"]) == (60, None, "retry")
    assert options["completed_retention_seconds"] == 3600


def test_an_option_that_is_refused(tab: Tab):
    tab.go("queues", "orders")
    tab.press("Edit")
    tab.dialog.locator("[name=lease_time]").fill("-1")
    tab.press("Review")
    tab.press("Change")
    expect(tab.page.locator(".notice.bad")).to_contain_text("lease_time")


def test_redrive_one(tab: Tab, shop: Client):
    tab.go("dead-letters", query="?queue=orders&error=svg")
    letter = tab.page.locator(".letter")
    expect(letter).to_have_count(1)
    letter.locator("summary").click()
    letter.get_by_role("button", name="Redrive").click()
    expect(tab.dialog).to_contain_text("delivered again, to search on orders alone")
    tab.press("Redrive it")
    expect(letter).to_have_count(0)
    expect(tab.card("Who did what")).to_contain_text("redriven", timeout=15_000)
    assert len(shop.dead_letters("orders")) == 22


def test_redrive_many_after_a_dry_run(tab: Tab, shop: Client):
    tab.go("dead-letters")
    tab.row("TimeoutError").get_by_role("button", name="Redrive all").click()
    expect(tab.dialog).to_contain_text("14 dead letters of search on orders with this error are delivered again")
    tab.dialog.get_by_role("button", name="Cancel").click()
    assert len(shop.dead_letters("orders")) == 22
    tab.row("TimeoutError").get_by_role("button", name="Redrive all").click()
    tab.press("Redrive 14")
    tab.notice("14 dead letters driven again")
    expect(tab.row("TimeoutError").get_by_role("button", name="Redrive all")).to_have_count(0)
    with Skep(shop.app.config.database_url) as mq:
        assert sum(each.lag for each in mq.lag("search", "orders")) == 15


def test_delete_many(tab: Tab, shop: Client):
    tab.go("dead-letters")
    tab.row("ValueError").get_by_role("button", name="Delete all").click()
    expect(tab.dialog).to_contain_text("8 dead letters of search on orders with this error are deleted for good")
    tab.press("Delete 8")
    tab.notice("8 dead letters deleted")
    assert shop.dead_letters("orders") == []


def test_maintenance(tab: Tab, shop: Client):
    tab.go("system")
    switch = tab.page.get_by_role("switch", name="Push maintenance")
    switch.click()
    expect(tab.dialog).to_contain_text("All servers hold pushes back within a second")
    tab.press("Begin it")
    expect(switch).to_have_attribute("aria-checked", "true")
    shop.push("emails", "held")
    expect(tab.card("Maintenance")).to_contain_text("1 message held", timeout=10_000)
    switch.click()
    expect(tab.dialog).to_contain_text("1 held message is stored first")
    tab.press("End it")
    expect(switch).to_have_attribute("aria-checked", "false")
    pops = tab.page.get_by_role("switch", name="Pop maintenance")
    pops.click()
    tab.press("Begin it")
    expect(pops).to_have_attribute("aria-checked", "true")
    until(lambda: shop.get("/api/v1/system/maintenance").json["popMaintenanceMode"])
    pops.click()
    tab.press("End it")
    expect(pops).to_have_attribute("aria-checked", "false")
