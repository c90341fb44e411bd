"""Check pages with axe-core, which finds violations of the accessibility rules."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from skep.dashboard.fetch import installed
from tests.dashboard.browsing import skip_or_fail

PACKAGE = Path(__file__).with_name("package.json")
VERSION = json.loads(PACKAGE.read_text())["dependencies"]["axe-core"]
CACHED = Path(sys.prefix) / f"axe-core-{VERSION}.js"


def _source() -> str:
    """Return axe-core; fetch it if this environment has no copy yet."""
    if not CACHED.is_file():
        try:
            with installed(PACKAGE) as modules:
                draft = CACHED.with_name(f".{CACHED.name}")
                draft.write_bytes((modules / "axe-core" / "axe.min.js").read_bytes())
                draft.replace(CACHED)
        except (OSError, subprocess.CalledProcessError) as error:
            skip_or_fail(f"cannot fetch axe-core: {error}")
    return CACHED.read_text()


def violations(page: Page) -> list[str]:
    """Return the accessibility violations of the page: the rule, its help text and the element."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(_source())
    found: list[dict[str, Any]] = page.evaluate("axe.run({ resultTypes: ['violations'] }).then((r) => r.violations)")
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for each in found
        for node in each["nodes"][:3]
    ]
