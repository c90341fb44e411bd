"""`skep install` and `skep uninstall`: bring a database to the schema of this package, or drop the schema."""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from rich.status import Status

from skep.cli.ask import confirm
from skep.cli.report import describe, errors
from skep.cli.show import as_dict, show_json
from skep.config import Config, display_database_url
from skep.engine.install import InstallReport, install, uninstall
from skep.engine.script import script
from skep.errors import ConfigError


def run(config: Config, *, print_sql: bool, again: bool, as_json: bool) -> None:
    if print_sql:
        print(script(), end="")
        return
    url = _named(config, "`skep serve` installs into the embedded one by itself")
    with _shown():
        report = install(url, again=again)
    if as_json:
        show_json(as_dict(report))
        return
    print(f"{display_database_url(url)}: {describe(report)}")
    _advise(report)


def _named(config: Config, embedded: str) -> str:
    if config.database_url is None:
        raise ConfigError("which database?", hint=f"pass --database-url or set SKEP_DATABASE_URL; {embedded}")
    return config.database_url


def _advise(report: InstallReport) -> None:
    """Tell on standard error how to get the roles, and which grants of users are gone."""
    if report.missing_roles:
        hint = "let a user with CREATEROLE create the roles and run `skep install --again`, or grant single functions"
        errors.print(f"hint: {hint}", style="yellow", markup=False)
    for grant in report.lost_grants:
        errors.print(f"warning: a grant is lost with its function or view: {grant}", style="yellow", markup=False)


def remove(config: Config, *, yes: bool, as_json: bool) -> None:
    url = _named(config, "the embedded one is removed with its folder")
    if not yes:
        confirm(f"Delete Skep with all its queues and messages from {display_database_url(url)}?")
    uninstall(url)
    if as_json:
        show_json({"uninstalled": True})
    else:
        print(f"{display_database_url(url)}: Skep is uninstalled; its roles stay, because other databases may use them")


@contextmanager
def _shown() -> Generator[None]:
    """Show on a terminal which file runs: a migration may take its time."""
    log = logging.getLogger("skep.install")
    before = log.level
    log.setLevel(logging.INFO)
    with errors.status("Installing") as status:
        handler = _Shown(status)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(before)


class _Shown(logging.Handler):
    def __init__(self, status: Status) -> None:
        super().__init__(logging.INFO)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        self._status.update(f"Installing: {record.getMessage()}")
