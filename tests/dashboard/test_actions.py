"""Every button says exactly what will happen, does nothing when one thinks better of it, and does it otherwise."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from skep import Skep
from tests.dashboard.axe import violations
from tests.dashboard.browsing import Tab, browser, context, shop, shots, tab
from tests.server.serving import Client, until

__all__ = ["browser", "context", "shop", "shots", "tab"]


def group(shop: Client, name: str, queue: str):
    return shop.get("/api/v1/groups", group=name, queue=queue).json[0]


def test_pause_and_resume(tab: Tab, shop: Client):
    tab.go("groups", "billing", "orders")
    tab.press("Pause")
    expect(tab.dialog).to_contain_text(
        "billing gets nothing from orders until it is resumed. 0 messages stay owed to it"
    )
    tab.dialog.get_by_role("button", name="Go back").click()
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
    expect(tab.dialog).to_contain_text("lease time: 300 s (5 min) → 60 s")
    expect(tab.dialog).to_contain_text("retention: 604,800 s (7 d) → no limit")
    expect(tab.dialog).to_contain_text("the queue keeps 600 messages now")
    tab.press("Change")
    tab.notice("The options are changed")
    expect(tab.page.locator(".options div", has_text="lease time")).to_contain_text("60 s")
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
    letter.get_by_role("button", name="Redrive", exact=True).click()
    expect(tab.dialog).to_contain_text("delivered again, to search on orders alone")
    tab.press("Redrive it")
    expect(letter).to_have_count(0)
    expect(tab.card("Who did what")).to_contain_text("redriven", timeout=15_000)
    assert len(shop.dead_letters("orders")) == 22


def test_redrive_many_after_a_dry_run(tab: Tab, shop: Client):
    tab.go("dead-letters")
    tab.row("TimeoutError").get_by_role("button", name="Redrive all").click()
    expect(tab.dialog).to_contain_text(
        "14 dead letters of search on orders whose error has this text are delivered again"
    )
    tab.dialog.get_by_role("button", name="Go back").click()
    assert len(shop.dead_letters("orders")) == 22
    tab.row("TimeoutError").get_by_role("button", name="Redrive all").click()
    tab.press("Redrive 14")
    tab.notice("14 dead letters driven again")
    expect(tab.row("TimeoutError").get_by_role("button", name="Redrive all")).to_have_count(0)
    with Skep(shop.app.config.database_url) as mq:
        assert sum(each.lag for each in mq.lag("search", "orders")) == 15


def test_many_go_step_by_step(tab: Tab, shop: Client, shots: Path):
    """A bar tells how far it is, and a button stops it; what was announced is driven, and nothing that came later."""
    bury(shop, "bulk", 500, "Overflow: too much")
    tab.go("dead-letters", query="?queue=bulk")
    tab.row("Overflow").get_by_role("button", name="Redrive all").click()
    bury(shop, "bulk", 1, "Overflow: too much")
    tab.press("Redrive 500")
    bar = tab.dialog.get_by_role("progressbar")
    expect(bar).to_have_attribute("max", "500")
    tab.notice("500 dead letters driven again")
    assert len(shop.dead_letters("bulk")) == 1
    bury(shop, "more", 600, "Overflow: too much")
    tab.go("dead-letters", query="?queue=more")
    held: list[Route] = []
    tab.page.route("**/dead-letters/redrive", lambda route: hold(route, held))
    tab.row("Overflow").get_by_role("button", name="Redrive all").click()
    tab.press("Redrive 600")
    tab.page.screenshot(path=shots / "dialog-progress-1280-light.png")
    tab.press("Stop after this step")
    held[0].continue_()
    expect(tab.page.locator(".notice.bad")).to_contain_text("200 dead letters driven again. 400 were not.")
    (left,) = shop.get("/api/v1/dead-letters/count", queue="more").json
    assert left["letters"] == 400


def hold(route: Route, held: list[Route]) -> None:
    """Keep the steps waiting, and let the dry run pass."""
    if "dry_run" in (route.request.post_data or ""):
        route.continue_()
    else:
        held.append(route)


def bury(shop: Client, queue: str, count: int, error: str) -> None:
    with Skep(shop.app.config.database_url) as mq:
        mq.queue(queue).push_many(range(count))
        mq.queue(queue).pop(group="g", batch=count).dead_letter(None, error)


def test_edit_and_redrive(tab: Tab, shop: Client, shots: Path):
    with Skep(shop.app.config.database_url) as mq:
        mq.queue("typos").push({"amount": "12345678901234567890", "id": 9007199254740993}, headers={"h": 1})
        mq.queue("typos").pop(group="g").dead_letter(None, "amount is no number")
    tab.go("dead-letters", query="?queue=typos")
    tab.page.locator(".letter summary").click()
    tab.press("Edit and redrive")
    expect(tab.dialog).to_contain_text("A message with this payload is delivered to g on typos alone")
    assert violations(tab.page) == []
    tab.page.screenshot(path=shots / "dialog-edit-1280-light.png")
    box = tab.page.get_by_label("Payload (JSON)")
    expect(box).to_have_value('{\n  "id": 9007199254740993,\n  "amount": "12345678901234567890"\n}')
    box.fill('{"amount": oops}')
    expect(tab.dialog).to_contain_text("This is not JSON")
    expect(tab.dialog.get_by_role("button", name="Redrive it")).to_be_disabled()
    box.fill('{"amount": 12345678901234567890, "id": 9007199254740993}')
    tab.press("Redrive it with this payload")
    tab.notice("with the new payload")
    (message,) = shop.pop("typos", consumerGroup="g", partitions=10)
    assert message["data"] == {"amount": 12345678901234567890, "id": 9007199254740993}
    assert (message["headers"]["h"], message["headers"]["skep-redriven"]["edited"]) == (1, True)


def test_without_a_mouse(tab: Tab, shop: Client):
    """Reach a button, think better of it, and press it, with keys alone. The focus stays in a dialog and comes back."""
    keys = tab.page.keyboard
    tab.go("groups", "ledger", "payments")
    expect(tab.tile("Lag")).to_be_visible()
    reach(tab, "Pause")
    keys.press("Enter")
    expect(tab.dialog).to_be_visible()
    for _ in range(6):
        keys.press("Tab")
        assert tab.page.evaluate(
            "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
        )
    keys.press("Escape")
    expect(tab.dialog).to_have_count(0)
    assert focused(tab) == "Pause"
    assert group(shop, "ledger", "payments")["status"] == "ACTIVE"
    keys.press("Space")
    expect(tab.dialog).to_be_visible()
    reach(tab, "Pause the group")
    keys.press("Enter")
    expect(tab.page.locator("h1 .status")).to_have_text("paused")
    assert focused(tab) == "Resume"
    keys.press("Enter")
    expect(tab.dialog).to_be_visible()
    reach(tab, "Resume the group")
    keys.press("Enter")
    expect(tab.page.locator("h1 .status")).to_have_text("active")


def focused(tab: Tab) -> str:
    return tab.page.evaluate("document.activeElement.textContent")


def reach(tab: Tab, name: str) -> None:
    """Press Tab until a button or link has the focus, and see that one sees it."""
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        if focused(tab) == name:
            style = "getComputedStyle(document.activeElement).outlineStyle"
            assert tab.page.evaluate(style) != "none"
            return
    raise AssertionError(f"{name} cannot be reached")


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 400)])
def test_dialogs_can_be_read(tab: Tab, shots: Path, scheme: Any, width: int):
    """The forms and questions, as axe sees them."""
    tab.page.emulate_media(color_scheme=scheme)
    tab.page.set_viewport_size({"width": width, "height": 900})
    tab.go("groups", "billing", "orders")
    for button, word in (("Seek", "In 12 partitions"), ("Cancel", "no longer owed")):
        tab.page.locator("header").get_by_role("button", name=button).click()
        expect(tab.dialog).to_contain_text(word)
        assert violations(tab.page) == []
        tab.page.screenshot(path=shots / f"dialog-{button}-{width}-{scheme}.png")
        tab.page.keyboard.press("Escape")
    tab.go("queues", "orders")
    tab.press("Edit")
    expect(tab.dialog.locator("[name=lease_time]")).to_be_visible()
    assert violations(tab.page) == []
    tab.page.screenshot(path=shots / f"dialog-options-{width}-{scheme}.png")
    tab.page.keyboard.press("Escape")


def test_delete_many(tab: Tab, shop: Client):
    tab.go("dead-letters")
    tab.row("ValueError").get_by_role("button", name="Delete all").click()
    expect(tab.dialog).to_contain_text(
        "8 dead letters of search on orders whose error has this text are deleted for good"
    )
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
