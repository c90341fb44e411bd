"""`skep doctor`: check the database for known problems, and print what to do about them."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import psycopg
import typer
from psycopg.errors import InsufficientPrivilege
from rich.text import Text

from skep.cli.connect import database_name, opening
from skep.cli.options import DatabaseUrl, DataDir, Json
from skep.cli.show import as_dict, counted, one_line, say, show_json
from skep.config import Config
from skep.errors import SkepError, explained

if TYPE_CHECKING:
    from skep.cli.checks import Check, CheckedDatabase, CheckResult

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
NAME_WIDTH = len("transactions")  # the longest name


def doctor(
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also read every message to check the consistency of the log.")
    ] = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Check the database for known problems. The exit code is 1 if a check fails."""
    results: dict[str, CheckResult] = {}
    for name, result in _check_all(Config.load_client(database_url, data_dir), thorough=thorough):
        results[name] = result
        if not as_json:
            _show(name, result)
    healthy = all(result.status != "fail" for result in results.values())
    if as_json:
        checks = [{"check": name, **as_dict(result)} for name, result in results.items()]
        show_json({"healthy": healthy, "checks": checks})
    else:
        _show_totals(results)
    if not healthy:
        raise typer.Exit(1)


def _check_all(config: Config, *, thorough: bool) -> "Iterator[tuple[str, CheckResult]]":
    """Yield the result of each check. Stop if the connection or the schema fails."""
    from skep.cli.checks import DATABASE_CHECKS, SKEP_CHECKS, THOROUGH_CHECKS, CheckResult
    from skep.cli.checks.schema import schema

    try:
        with _connected(config) as db:
            yield "connection", CheckResult("ok", database_name(config))
            yield from _check_each(db, DATABASE_CHECKS)
            found = _check(db, schema)
            yield "schema", found
            if found.status == "ok":
                yield from _check_each(db, SKEP_CHECKS)
                yield from _check_each(db, THOROUGH_CHECKS if thorough else {})
    except SkepError as error:
        text = ": ".join(filter(None, (error.message, error.detail)))
        yield "connection", CheckResult("fail", one_line(text), error.hint)


def _check_each(db: "CheckedDatabase", checks: "Mapping[str, Check]") -> "Iterator[tuple[str, CheckResult]]":
    for name, check in checks.items():
        yield name, _check(db, check)


def _check(db: "CheckedDatabase", check: "Check") -> "CheckResult":
    from skep.cli.checks.result import warn

    try:
        return check(db)
    except InsufficientPrivilege as error:
        advice = "run it as the owner of the schema, or as a member of skep_admin"
        return warn(f"this user may not check it: {one_line(error.diag.message_primary or '')}", advice)


@contextmanager
def _connected(config: Config) -> "Generator[CheckedDatabase]":
    from skep import embedded
    from skep.cli.checks import CheckedDatabase
    from skep.engine.install import install, patience

    with ExitStack() as stack:
        with opening(config), explained():
            url, data_dir = config.database_url, None
            if url is None:
                server = stack.enter_context(embedded.start(config.data_dir))
                url, data_dir = server.url, server.data_dir
                install(url, data_dir=data_dir)
            connection = psycopg.connect(
                url, autocommit=True, prepare_threshold=None, application_name="skep", connect_timeout=patience(url)
            )
            stack.enter_context(connection)
        with explained():
            yield CheckedDatabase(connection, data_dir)


def _show(name: str, result: "CheckResult") -> None:
    style = STYLES[result.status]
    say(Text.assemble((f"{result.status:<5}", style), f"{name:<{NAME_WIDTH}}  ", result.found))
    if result.advice:
        say(Text.assemble(" " * (NAME_WIDTH + 7), ("-> ", style), result.advice))


def _show_totals(results: "Mapping[str, CheckResult]") -> None:
    counts = Counter(result.status for result in results.values())
    problems = f"{counted(counts['warn'], 'warning')}, {counted(counts['fail'], 'failure')}"
    say(f"{counted(len(results), 'check')}: {counts['ok']} ok, {problems}")
