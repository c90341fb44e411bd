"""The command line: the only place that prints, exits and handles signals. Bodies are imported when they are called."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import skep
from skep.config import Config, flag_name, help_text

app = typer.Typer(
    help="A partitioned message queue and pub/sub log inside PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _option(setting: str) -> object:
    return typer.Option(flag_name(setting), help=help_text(setting), show_default=False)


DatabaseUrl = Annotated[str | None, _option("database_url")]
DataDir = Annotated[Path | None, _option("data_dir")]


def main() -> None:
    """Run the command line; an error is one line and a hint, never a traceback (unless SKEP_DEBUG=1)."""
    try:
        app()
    except Exception as error:
        if os.environ.get("SKEP_DEBUG"):
            raise
        from skep.cli.report import show_error

        show_error(error)
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"skep {skep.__version__}")
        raise typer.Exit


@app.callback()
def _skep(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def serve(database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Run Skep on an embedded PostgreSQL, or on yours."""
    from skep.cli.serve import run

    run(Config.load(database_url=database_url, data_dir=data_dir))


@app.command()
def install(
    database_url: DatabaseUrl = None,
    print_sql: Annotated[bool, typer.Option("--print", help="Print the SQL instead of running it.")] = False,
) -> None:
    """Install or upgrade Skep in a PostgreSQL database."""
    from skep.cli.install import run

    run(Config.load(database_url=database_url), print_sql=print_sql)
