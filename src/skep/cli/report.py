"""How errors and installs are shown to people."""

import psycopg
from rich.console import Console

from skep.cli.show import one_line
from skep.engine.install import USE_RIGHTS, InstallReport
from skep.errors import PermissionDenied, SkepError, from_sqlstate

errors = Console(stderr=True, highlight=False, soft_wrap=True)


def show_error(error: Exception) -> None:
    """Print one red line, and below it where and what to do."""
    known = explain(error)
    errors.print(f"error: {_one_line(known.message)}", style="bold red", markup=False)
    if known.detail:
        errors.print(f"  {_one_line(known.detail)}", markup=False)
    if known.hint:
        errors.print(f"hint: {_one_line(known.hint)}", style="yellow", markup=False)


def explain(error: Exception) -> SkepError:
    """Give every error the shape of Skep's own; what nobody foresaw is named by its type."""
    known = error if isinstance(error, SkepError) else None
    if isinstance(error, psycopg.Error):
        known = from_sqlstate(error)
    if isinstance(known, PermissionDenied):
        known.hint = known.hint or USE_RIGHTS
    return known or SkepError(f"{type(error).__name__}: {error}", hint="SKEP_DEBUG=1 shows where this comes from")


def _one_line(text: str) -> str:
    return one_line(" ".join(text.split()))


def describe(report: InstallReport) -> str:
    """Describe the outcome of an install in one line."""
    if not report.functions:
        done = "up to date"
    elif not report.migrations:
        done = "functions renewed"
    else:
        done = f"applied {', '.join(report.migrations)}"
    missing = f"; roles left out: {', '.join(report.missing_roles)}" if report.missing_roles else ""
    return f"schema version {report.version}, {done}{missing}"
