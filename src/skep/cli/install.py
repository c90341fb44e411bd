"""`skep install`: bring a database to the schema of this package, or print the SQL that would."""

from skep.cli.report import describe
from skep.config import Config, display_database_url
from skep.engine.install import install
from skep.engine.script import script
from skep.errors import ConfigError


def run(config: Config, *, print_sql: bool, again: bool) -> None:
    if print_sql:
        print(script(), end="")
        return
    if config.database_url is None:
        hint = "pass --database-url or set SKEP_DATABASE_URL; `skep serve` installs into the embedded one by itself"
        raise ConfigError("which database?", hint=hint)
    report = install(config.database_url, again=again)
    print(f"{display_database_url(config.database_url)}: {describe(report)}")
