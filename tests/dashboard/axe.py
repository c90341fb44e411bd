"""axe-core, which looks at a page as somebody would who does not see it well, or has no mouse."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from skep.dashboard.fetch import installed
from tests.dashboard.browsing import lack

PACKAGE = Path(__file__).with_name("package.json")
VERSION = json.loads(PACKAGE.read_text())["dependencies"]["axe-core"]
KEPT = Path(sys.prefix) / f"axe-core-{VERSION}.js"


def _source() -> str:
    """Fetch it once for this environment."""
    if not KEPT.is_file():
        try:
            with installed(PACKAGE) as modules:
                draft = KEPT.with_name(f".{KEPT.name}")
                draft.write_bytes((modules / "axe-core" / "axe.min.js").read_bytes())
                draft.replace(KEPT)
        except (OSError, subprocess.CalledProcessError) as error:
            lack(f"axe-core cannot be fetched: {error}")
    return KEPT.read_text()


def violations(page: Page) -> list[str]:
    """Return what is wrong with the page as it is now: the rule, what it wants, and where."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(_source())
    found: list[dict[str, Any]] = page.evaluate("axe.run({ resultTypes: ['violations'] }).then((r) => r.violations)")
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for each in found
        for node in each["nodes"][:3]
    ]
