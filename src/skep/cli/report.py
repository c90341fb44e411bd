"""Texts for errors and for the result of an install."""

import psycopg

from skep.cli.show import error_console, one_line
from skep.engine.install import USE_RIGHTS, InstallReport
from skep.errors import PermissionDenied, SkepError, from_sqlstate


def show_error(error: Exception) -> None:
    """Print the error in red, then its detail and its hint."""
    errors = error_console()
    known = explain(error)
    errors.print(f"error: {_one_line(known.message)}", style="bold red", markup=False)
    if known.detail:
        errors.print(f"  {_one_line(known.detail)}", markup=False)
    if known.hint:
        errors.print(f"hint: {_one_line(known.hint)}", style="yellow", markup=False)


def explain(error: Exception) -> SkepError:
    """Convert any error to a SkepError. The message of an unexpected error starts with its type."""
    known = error if isinstance(error, SkepError) else None
    if isinstance(error, psycopg.Error):
        known = from_sqlstate(error)
    if isinstance(known, PermissionDenied):
        known.hint = known.hint or USE_RIGHTS
    return known or SkepError(f"{type(error).__name__}: {error}", hint="SKEP_DEBUG=1 shows the traceback")


def _one_line(text: str) -> str:
    return one_line(" ".join(text.split()))


def describe(report: InstallReport) -> str:
    """Describe the result of an install in one line."""
    if not report.functions:
        done = "up to date"
    elif not report.migrations:
        done = "functions renewed"
    else:
        done = f"applied {', '.join(report.migrations)}"
    missing = f"; roles left out: {', '.join(report.missing_roles)}" if report.missing_roles else ""
    return f"schema version {report.version}, {done}{missing}"
