"""`skep doctor`: looks at everything that is known to hurt, and says what to do."""

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import psycopg
from psycopg.errors import InsufficientPrivilege
from rich.text import Text

from skep import embedded
from skep.cli.checks import OF_DATABASE, OF_SKEP, THOROUGH, Check, Finding, Patient
from skep.cli.checks.finding import Verdict
from skep.cli.checks.schema import schema
from skep.cli.connect import opening, place
from skep.cli.show import as_dict, counted, one_line, say, show_json
from skep.config import Config
from skep.engine.install import install, patience
from skep.errors import SkepError, explained

STYLES: dict[Verdict, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}
NAME_WIDTH = max(map(len, (*OF_DATABASE, *OF_SKEP)))

Report = dict[str, Finding]


def run(config: Config, *, thorough: bool, as_json: bool) -> bool:
    """Return whether nothing failed."""
    report: Report = {}
    for name, finding in examine(config, thorough=thorough):
        report[name] = finding
        if not as_json:
            _show(name, finding)
    healthy = all(finding.verdict != "fail" for finding in report.values())
    if as_json:
        checks = [{"check": name, **as_dict(finding)} for name, finding in report.items()]
        show_json({"healthy": healthy, "checks": checks})
    else:
        _sum_up(report)
    return healthy


def examine(config: Config, *, thorough: bool) -> Iterator[tuple[str, Finding]]:
    """Yield what each check finds. Without a connection, or without the schema, the rest has nothing to look at."""
    try:
        with _connected(config) as patient:
            yield "connection", Finding("ok", place(config))
            yield from _all(patient, OF_DATABASE)
            found = _check(patient, schema)
            yield "schema", found
            if found.verdict == "ok":
                yield from _all(patient, OF_SKEP)
                yield from _all(patient, THOROUGH if thorough else {})
    except SkepError as error:
        text = ": ".join(filter(None, (error.message, error.detail)))
        yield "connection", Finding("fail", one_line(text), error.hint)


def _all(patient: Patient, checks: Mapping[str, Check]) -> Iterator[tuple[str, Finding]]:
    for name, check in checks.items():
        yield name, _check(patient, check)


def _check(patient: Patient, check: Check) -> Finding:
    try:
        return check(patient)
    except InsufficientPrivilege as error:
        advice = "look as the owner of the schema, or as one who is skep_admin"
        return Finding("warn", f"this user may not look: {one_line(error.diag.message_primary or '')}", advice)


@contextmanager
def _connected(config: Config) -> Generator[Patient]:
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
            yield Patient(connection, data_dir)


def _show(name: str, finding: Finding) -> None:
    style = STYLES[finding.verdict]
    say(Text.assemble((f"{finding.verdict:<5}", style), f"{name:<{NAME_WIDTH}}  ", finding.found))
    if finding.advice:
        say(Text.assemble(" " * (NAME_WIDTH + 7), ("-> ", style), finding.advice))


def _sum_up(report: Report) -> None:
    counts = Counter(finding.verdict for finding in report.values())
    words = [counted(counts[verdict], noun) for verdict, noun in (("warn", "warning"), ("fail", "failure"))]
    say(f"{counted(len(report), 'check')}: {counts['ok']} ok, {', '.join(words)}")
