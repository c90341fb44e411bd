"""The reports of `skep pipeline analytics` in the folder SKEP_REPORTS, for callers who may read every queue.

A link in a page cannot carry a token, and a token in an address would end up in logs: so a form posts it. A report is
sent in a sandbox: it runs no scripts, has no origin, and loads nothing.
"""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from skep.server.http.asgi import Header, bad_request
from skep.server.http.endpoint import Call, Endpoint, Reply
from skep.server.http.lists import not_found

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\.html")
LATEST = "latest"
ALONE = b"sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
SANDBOX: tuple[Header, ...] = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", ALONE),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """A stored report."""

    name: str
    bytes: int
    made_at: float  # seconds since 1970


def reports(folder: Path | None) -> list[Report]:
    """Return the reports in the folder, newest first. A missing folder has none."""
    if folder is None or not folder.is_dir():
        return []
    found = [(each.name, each.stat()) for each in folder.iterdir() if NAME.fullmatch(each.name) and each.is_file()]
    made = [Report(name, stat.st_size, stat.st_mtime) for name, stat in found]
    return sorted(made, key=lambda report: (report.made_at, report.name), reverse=True)


async def show(call: Call) -> Reply:
    return Reply(200, await asyncio.to_thread(_read, call.state.config.reports, call.params["file"]), SANDBOX)


async def show_to_bearer(call: Call) -> Reply:
    """Return a report to a form that contains the token."""
    try:
        token = parse_qs((await call.body()).decode(), strict_parsing=True, max_num_fields=10)["token"][0]
    except (ValueError, KeyError):
        raise bad_request("the form has no token") from None
    identity = await call.state.authenticator.identify(f"Bearer {token}")
    identity.require("read", None)
    return await show(call)


def _read(folder: Path | None, name: str) -> bytes:
    known = {report.name: report for report in reports(folder)}
    if name == LATEST:
        name = next(iter(known), "")
    if folder is None or name not in known:
        raise not_found("Report")
    return (folder / name).read_bytes()


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/reports/{file}",
        action="read",
        on="every",
        run=show,
        summary="A report of `skep pipeline analytics` by its name; `latest` is the newest.",
        answers={200: str, 404: None},
        media="text/html",
    ),
    Endpoint(
        method="POST",
        path="/reports/{file}",
        action=None,
        run=show_to_bearer,
        summary="The same for a page, which cannot set a header: its form has the field `token`.",
        answers={200: str, 404: None},
        media="text/html",
    ),
)
