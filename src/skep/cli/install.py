"""`skep install`: bring a database to the schema of this package, or print the SQL that would."""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from rich.status import Status

from skep.cli.report import describe, errors
from skep.cli.show import as_dict, show_json
from skep.config import Config, display_database_url
from skep.engine.install import install
from skep.engine.script import script
from skep.errors import ConfigError


def run(config: Config, *, print_sql: bool, again: bool, as_json: bool) -> None:
    if print_sql:
        print(script(), end="")
        return
    if config.database_url is None:
        hint = "pass --database-url or set SKEP_DATABASE_URL; `skep serve` installs into the embedded one by itself"
        raise ConfigError("which database?", hint=hint)
    with _shown():
        report = install(config.database_url, again=again)
    if as_json:
        show_json(as_dict(report))
    else:
        print(f"{display_database_url(config.database_url)}: {describe(report)}")


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
