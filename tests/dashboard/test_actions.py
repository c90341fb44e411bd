"""Actions: each button opens a dialog that says exactly what will happen, and acts only when it is confirmed."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from skep import Skep
from tests.dashboard.axe import violations
from tests.dashboard.browsing import Tab, browser, context, screenshots, server, tab
from tests.server.serving import Client, until

__all__ = ["browser", "context", "screenshots", "server", "tab"]


def group(server: Client, name: str, queue: str):
    return server.get("/api/v1/groups", group=name, queue=queue).json[0]


def test_pause_and_resume(tab: Tab, server: Client):
    tab.go("groups", "billing", "orders")
    tab.press("Pause")
    expect(tab.dialog).to_contain_text("0 pending messages")
    tab.dialog.get_by_role("button", name="Go back").click()
    expect(tab.dialog).to_have_count(0)
    assert group(server, "billing", "orders")["status"] == "ACTIVE"
    tab.press("Pause")
    tab.press("Pause group")
    tab.notice("billing paused")
    expect(tab.page.locator("h1 .status")).to_have_text("paused")
    assert group(server, "billing", "orders")["status"] == "PAUSED"
    tab.press("Resume")
    tab.press("Resume group")
    expect(tab.page.locator("h1 .status")).to_have_text("active")


def test_leaving_the_page_dismisses_the_dialog(tab: Tab, server: Client):
    tab.go("groups", "billing", "orders")
    tab.press("Pause")
    expect(tab.dialog).to_be_visible()
    tab.go("queues")
    expect(tab.dialog).to_have_count(0)
    assert group(server, "billing", "orders")["status"] == "ACTIVE"


def test_seek_previews_its_effect(tab: Tab, server: Client):
    tab.go("groups", "shipping", "orders")
    tab.press("Seek")
    expect(tab.dialog).to_contain_text(
        "In 12 partitions: 0 completed messages are delivered again, 240 pending messages are skipped."
    )
    expect(tab.dialog).to_contain_text("1 active lease is revoked")
    tab.page.get_by_label("To the beginning").check()
    expect(tab.dialog).to_contain_text(
        "360 completed messages are delivered again, 0 pending messages are skipped. Lag after the seek: 600 messages"
    )
    tab.page.get_by_label("To a time").check()
    seek = tab.dialog.get_by_role("button", name="Seek")
    expect(seek).to_be_disabled()
    tab.page.get_by_label("Time", exact=True).fill("2020-01-01T00:00:00")
    expect(tab.dialog).to_contain_text("Lag after the seek: 600 messages")
    tab.page.get_by_label("To the end").check()
    expect(tab.dialog).to_contain_text("Lag after the seek: 0 messages")
    seek.click()
    tab.notice("shipping moved")
    expect(tab.tile("Lag")).to_have_text("0")
    assert group(server, "shipping", "orders")["lag"] == 0


def test_cancel_a_group(tab: Tab, server: Client):
    tab.go("groups", "fraud", "payments")
    tab.page.locator("header").get_by_role("button", name="Cancel").click()
    expect(tab.dialog).to_contain_text("may delete its 140 pending messages")
    tab.press("Cancel group")
    expect(tab.page.locator("h1 .status")).to_have_text("cancelled")
    assert group(server, "fraud", "payments")["status"] == "CANCELLED"


def test_options_are_reviewed(tab: Tab, server: Client):
    tab.go("queues", "orders")
    tab.press("Edit")
    tab.dialog.locator("[name=lease_time]").fill("60")
    tab.dialog.locator("[name=retention_seconds]").fill("")
    tab.dialog.locator("[name=partial_failure]").select_option("retry")
    tab.press("Review")
    expect(tab.dialog).to_contain_text("lease time: 300 s (5 min) → 60 s")
    expect(tab.dialog).to_contain_text("retention: 604,800 s (7 d) → no limit")
    expect(tab.dialog.locator(".warning")).to_contain_text("600 messages")
    tab.press("Change")
    tab.notice("Options of orders changed")
    expect(tab.page.locator(".options div", has_text="lease time")).to_contain_text("60 s")
    options = server.get("/api/v1/queues/orders").json["options"]
    assert (options["lease_time"], options["retention_seconds"], options["partial_failure"]) == (60, None, "retry")
    assert options["completed_retention_seconds"] == 3600


def test_an_invalid_option(tab: Tab):
    tab.go("queues", "orders")
    tab.press("Edit")
    tab.dialog.locator("[name=lease_time]").fill("-1")
    tab.press("Review")
    tab.press("Change")
    expect(tab.page.locator(".notice.bad")).to_contain_text("lease_time")


def test_redrive_one(tab: Tab, server: Client):
    tab.go("dead-letters", query="?queue=orders&error=svg")
    dead_letter = tab.page.locator(".dead-letter")
    expect(dead_letter).to_have_count(1)
    dead_letter.locator("summary").click()
    dead_letter.get_by_role("button", name="Redrive", exact=True).click()
    expect(tab.dialog).to_contain_text("group search on queue orders only")
    tab.press("Redrive 1")
    expect(dead_letter).to_have_count(0)
    expect(tab.card("Audit log")).to_contain_text("redriven", timeout=15_000)
    assert len(server.dead_letters("orders")) == 22


def test_redrive_many_after_a_dry_run(tab: Tab, server: Client):
    tab.go("dead-letters")
    tab.row("TimeoutError").get_by_role("button", name="Redrive all").click()
    expect(tab.dialog).to_contain_text("14 dead letters of group search on queue orders")
    tab.dialog.get_by_role("button", name="Go back").click()
    assert len(server.dead_letters("orders")) == 22
    tab.row("TimeoutError").get_by_role("button", name="Redrive all").click()
    tab.press("Redrive 14")
    tab.notice("14 dead letters redriven")
    expect(tab.row("TimeoutError").get_by_role("button", name="Redrive all")).to_have_count(0)
    with Skep(server.app.config.database_url) as mq:
        assert sum(each.lag for each in mq.lag("search", "orders")) == 15


def test_redrive_step_by_step(tab: Tab, server: Client, screenshots: Path):
    """The progress bar advances, and a button stops it. Dead letters that arrive after the dry run are not redriven."""
    add_dead_letters(server, "bulk", 500, "Overflow: too much")
    tab.go("dead-letters", query="?queue=bulk")
    tab.row("Overflow").get_by_role("button", name="Redrive all").click()
    add_dead_letters(server, "bulk", 1, "Overflow: too much")
    tab.press("Redrive 500")
    bar = tab.dialog.get_by_role("progressbar")
    expect(bar).to_have_attribute("max", "500")
    tab.notice("500 dead letters redriven")
    assert len(server.dead_letters("bulk")) == 1
    add_dead_letters(server, "more", 600, "Overflow: too much")
    tab.go("dead-letters", query="?queue=more")
    held: list[Route] = []
    tab.page.route("**/dead-letters/redrive", lambda route: hold(route, held))
    tab.row("Overflow").get_by_role("button", name="Redrive all").click()
    tab.press("Redrive 600")
    tab.page.screenshot(path=screenshots / "dialog-progress-1280-light.png")
    tab.press("Stop after this step")
    held[0].continue_()
    expect(tab.page.locator(".notice.bad")).to_contain_text("200 dead letters redriven. 400 not redriven.")
    (left,) = server.get("/api/v1/dead-letters/count", queue="more").json
    assert left["letters"] == 400


def hold(route: Route, held: list[Route]) -> None:
    """Delay all requests except the dry run."""
    if "dry_run" in (route.request.post_data or ""):
        route.continue_()
    else:
        held.append(route)


def add_dead_letters(server: Client, queue: str, count: int, error: str) -> None:
    with Skep(server.app.config.database_url) as mq:
        mq.queue(queue).push_many(range(count))
        mq.queue(queue).pop(group="g", batch=count).dead_letter(None, error)


def test_edit_and_redrive(tab: Tab, server: Client, screenshots: Path):
    with Skep(server.app.config.database_url) as mq:
        mq.queue("typos").push({"amount": "12345678901234567890", "id": 9007199254740993}, headers={"h": 1})
        mq.queue("typos").pop(group="g").dead_letter(None, "amount is not a number")
    tab.go("dead-letters", query="?queue=typos")
    tab.page.locator(".dead-letter summary").click()
    tab.press("Edit and redrive")
    expect(tab.dialog).to_contain_text("group g on queue typos only")
    assert violations(tab.page) == []
    tab.page.screenshot(path=screenshots / "dialog-edit-1280-light.png")
    box = tab.page.get_by_label("Payload (JSON)")
    expect(box).to_have_value('{\n  "id": 9007199254740993,\n  "amount": "12345678901234567890"\n}')
    box.fill('{"amount": oops}')
    expect(tab.dialog).to_contain_text("Invalid JSON")
    expect(tab.dialog.get_by_role("button", name="Redrive with this payload")).to_be_disabled()
    box.fill('{"amount": 12345678901234567890, "id": 9007199254740993}')
    tab.press("Redrive with this payload")
    tab.notice("with the new payload")
    (message,) = server.pop("typos", consumerGroup="g", partitions=10)
    assert message["data"] == {"amount": 12345678901234567890, "id": 9007199254740993}
    assert (message["headers"]["h"], message["headers"]["skep-redriven"]["edited"]) == (1, True)


def test_keyboard_only(tab: Tab, server: Client):
    """Open a dialog, dismiss it and confirm it by keyboard. The focus stays in the dialog and returns to the button."""
    keys = tab.page.keyboard
    tab.go("groups", "ledger", "payments")
    expect(tab.tile("Lag")).to_be_visible()
    focus_by_tab(tab, "Pause")
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
    assert group(server, "ledger", "payments")["status"] == "ACTIVE"
    keys.press("Space")
    expect(tab.dialog).to_be_visible()
    focus_by_tab(tab, "Pause group")
    keys.press("Enter")
    expect(tab.page.locator("h1 .status")).to_have_text("paused")
    assert focused(tab) == "Resume"
    keys.press("Enter")
    expect(tab.dialog).to_be_visible()
    focus_by_tab(tab, "Resume group")
    keys.press("Enter")
    expect(tab.page.locator("h1 .status")).to_have_text("active")


def focused(tab: Tab) -> str:
    return tab.page.evaluate("document.activeElement.textContent")


def focus_by_tab(tab: Tab, name: str) -> None:
    """Press Tab until a button or link has the focus, and check that the focus is visible."""
    for _ in range(60):
        tab.page.keyboard.press("Tab")
        if focused(tab) == name:
            style = "getComputedStyle(document.activeElement).outlineStyle"
            assert tab.page.evaluate(style) != "none"
            return
    raise AssertionError(f"Tab does not reach {name}")


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 400)])
def test_dialogs_are_accessible(tab: Tab, screenshots: Path, scheme: Any, width: int):
    tab.page.emulate_media(color_scheme=scheme)
    tab.page.set_viewport_size({"width": width, "height": 900})
    tab.go("groups", "billing", "orders")
    for button, text in (("Seek", "In 12 partitions"), ("Cancel", "0 pending messages")):
        tab.page.locator("header").get_by_role("button", name=button).click()
        expect(tab.dialog).to_contain_text(text)
        assert violations(tab.page) == []
        tab.page.screenshot(path=screenshots / f"dialog-{button}-{width}-{scheme}.png")
        tab.page.keyboard.press("Escape")
    tab.go("queues", "orders")
    tab.press("Edit")
    expect(tab.dialog.locator("[name=lease_time]")).to_be_visible()
    assert violations(tab.page) == []
    tab.page.screenshot(path=screenshots / f"dialog-options-{width}-{scheme}.png")
    tab.page.keyboard.press("Escape")


def test_purge_many(tab: Tab, server: Client):
    tab.go("dead-letters")
    tab.row("ValueError").get_by_role("button", name="Purge all").click()
    expect(tab.dialog).to_contain_text("8 dead letters of group search on queue orders")
    tab.press("Purge 8")
    tab.notice("8 dead letters purged")
    assert server.dead_letters("orders") == []


def test_maintenance(tab: Tab, server: Client):
    tab.go("system")
    switch = tab.page.get_by_role("switch", name="Push maintenance mode")
    switch.click()
    expect(tab.dialog).to_contain_text("all servers buffer pushes")
    tab.press("Turn on")
    expect(switch).to_have_attribute("aria-checked", "true")
    server.push("emails", "held")
    expect(tab.card("Maintenance modes")).to_contain_text("1 buffered message", timeout=10_000)
    switch.click()
    expect(tab.dialog).to_contain_text("1 buffered message is stored first")
    tab.press("Turn off")
    expect(switch).to_have_attribute("aria-checked", "false")
    pops = tab.page.get_by_role("switch", name="Pop maintenance mode")
    pops.click()
    tab.press("Turn on")
    expect(pops).to_have_attribute("aria-checked", "true")
    until(lambda: server.get("/api/v1/system/maintenance").json["popMaintenanceMode"])
    pops.click()
    tab.press("Turn off")
    expect(pops).to_have_attribute("aria-checked", "false")
