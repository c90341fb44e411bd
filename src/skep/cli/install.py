"""`skep install` and `skep uninstall`: create, upgrade or drop the schema of Skep in a database."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from skep.cli.confirm import confirm
from skep.cli.options import DatabaseUrl, Json, Yes
from skep.cli.show import as_dict, error_console, show_json
from skep.config import Config, display_database_url
from skep.errors import ConfigError

if TYPE_CHECKING:
    from rich.status import Status

    from skep.engine.install import InstallReport


def install(
    database_url: DatabaseUrl = None,
    print_sql: Annotated[bool, typer.Option("--print", help="Print the SQL instead of running it.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Re-create functions, roles and grants even if nothing has changed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Install or upgrade Skep in a PostgreSQL database."""
    from skep.cli.report import describe
    from skep.engine import install as engine
    from skep.engine.script import script

    config = Config.load_client(database_url)
    if print_sql:
        print(script(), end="")
        return
    url = _require_url(config, "`skep serve` installs into the embedded PostgreSQL by itself")
    with _log_on_terminal():
        report = engine.install(url, again=again)
    if as_json:
        show_json(as_dict(report))
        return
    print(f"{display_database_url(url)}: {describe(report)}")
    _warn(report)


def _require_url(config: Config, embedded: str) -> str:
    if config.database_url is None:
        hint = f"pass --database-url or set SKEP_DATABASE_URL; {embedded}"
        raise ConfigError("no database URL is given", hint=hint)
    return config.database_url


def _warn(report: "InstallReport") -> None:
    """Print on standard error how to create missing roles, and which grants were lost."""
    errors = error_console()
    if report.missing_roles:
        hint = "let a user with CREATEROLE create the roles and run `skep install --again`, or grant single functions"
        errors.print(f"hint: {hint}", style="yellow", markup=False)
    for grant in report.lost_grants:
        errors.print(f"warning: a grant is lost with its function or view: {grant}", style="yellow", markup=False)


def uninstall(database_url: DatabaseUrl = None, yes: Yes = False, as_json: Json = False) -> None:
    """Delete Skep with all its queues and messages from a PostgreSQL database."""
    from skep.engine import install as engine

    config = Config.load_client(database_url)
    url = _require_url(config, "to remove the embedded PostgreSQL, delete its folder")
    if not yes:
        confirm(f"Delete Skep with all its queues and messages from {display_database_url(url)}?")
    engine.uninstall(url)
    if as_json:
        show_json({"uninstalled": True})
    else:
        print(f"{display_database_url(url)}: Skep is uninstalled; its roles stay, because other databases may use them")


@contextmanager
def _log_on_terminal() -> Generator[None]:
    """Show on a terminal which file runs, because a migration can take long."""
    log = logging.getLogger("skep.install")
    before = log.level
    log.setLevel(logging.INFO)
    with error_console().status("Installing") as status:
        handler = _StatusHandler(status)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(before)


class _StatusHandler(logging.Handler):
    def __init__(self, status: "Status") -> None:
        super().__init__(logging.INFO)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        self._status.update(f"Installing: {record.getMessage()}")
