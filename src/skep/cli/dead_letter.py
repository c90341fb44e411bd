"""`skep dead-letter`: list, count, redrive and purge dead letters. `skep dlq` is an alias."""

import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from skep.cli.chart import bar
from skep.cli.confirm import confirm
from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, GroupFilter, Json, QueueFilter, Since, Until, Yes, complete_queue
from skep.cli.progress import progress
from skep.cli.show import Cell, as_dict, compact, counted, say, show_json, show_table
from skep.cli.times import parse_time
from skep.message import DeadLetter, DeadLetterAudit, Redriven

if TYPE_CHECKING:
    from skep import Skep

NO_LIMIT = 2**31 - 1
BATCH = 1000  # dead letters in one transaction

dead_letter_app = typer.Typer(help="List, count, redrive and purge dead letters.", no_args_is_help=True)

ErrorFilter = Annotated[str | None, typer.Option("--error", help="Text contained in the error.", show_default=False)]
Ids = Annotated[
    list[int] | None, typer.Option("--id", help="Only this dead letter. Can be repeated.", show_default=False)
]
ListLimit = Annotated[int, typer.Option("--limit", min=1, help="Number of entries to show, newest first.")]
MaxLetters = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="Maximum number of dead letters, oldest first.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]
ToQueue = Annotated[
    str | None,
    typer.Option(
        help="Push them to this queue for all its groups, instead of to their group only.",
        autocompletion=complete_queue,
        show_default=False,
    ),
]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Maximum number per second.", show_default=False)]


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters. None matches all."""

    queue: str | None = None
    group: str | None = None
    error: str | None = None
    failed_after: datetime | None = None
    failed_before: datetime | None = None
    ids: list[int] | None = None

    @classmethod
    def parse(
        cls,
        queue: str | None,
        group: str | None,
        error: str | None,
        since: str | None,
        until: str | None,
        ids: list[int] | None = None,
    ) -> Self:
        return cls(queue, group, error, parse_time(since), parse_time(until), ids or None)

    @property
    def matches_all(self) -> bool:
        return self == DeadLetterFilter()

    def arguments(self) -> dict[str, Any]:
        return as_dict(self)


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """The target queue, the maximum number and the maximum rate of a redrive."""

    to_queue: str | None
    limit: int | None
    rate: float | None

    @property
    def batch(self) -> int:
        """Return the size of a transaction: at most half a second's worth, so that a slow redrive is even."""
        return BATCH if self.rate is None else max(1, min(BATCH, int(self.rate / 2)))


@dead_letter_app.command("list")
def list_dead_letters(
    queue: QueueFilter = None,
    group: GroupFilter = None,
    error: ErrorFilter = None,
    since: Since = None,
    until: Until = None,
    limit: ListLimit = 100,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List dead letters, newest first."""
    arguments = DeadLetterFilter.parse(queue, group, error, since, until).arguments()
    del arguments["ids"]
    with connect(database_url, data_dir) as mq:
        letters = mq.dead_letters(**arguments, limit=limit)
    if as_json:
        show_json(letters)
        return
    headers = ("id", "failed", "group", "message", "attempts", "error", "payload")
    show_table(headers, (_row(letter) for letter in letters))


def _row(each: DeadLetter) -> tuple[Cell, ...]:
    address = f"{each.queue}/{each.partition} #{each.offset}"
    return str(each.id), each.failed_at, each.group, address, each.attempts, each.error, compact(each.payload)


@dead_letter_app.command()
def count(
    queue: QueueFilter = None,
    group: GroupFilter = None,
    since: Since = None,
    until: Until = None,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Count dead letters by error, most frequent first."""
    times = {"failed_after": parse_time(since), "failed_before": parse_time(until)}
    with connect(database_url, data_dir) as mq:
        counts = mq.count_dead_letters(queue, group, **times)
    if as_json:
        show_json(counts)
        return
    largest = max((each.letters for each in counts), default=0)
    rows = (
        (each.letters, bar(each.letters, largest), each.error, each.queue, each.group, each.last_failed_at)
        for each in counts
    )
    show_table(("dead letters", "", "error", "queue", "group", "last failed"), rows)


@dead_letter_app.command()
def redrive(
    queue: QueueFilter = None,
    group: GroupFilter = None,
    error: ErrorFilter = None,
    since: Since = None,
    until: Until = None,
    ids: Ids = None,
    to_queue: ToQueue = None,
    rate: Rate = None,
    limit: MaxLetters = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push dead letters again, oldest first: to the group that failed them, or to a queue."""
    selected = DeadLetterFilter.parse(queue, group, error, since, until, ids)
    options = RedriveOptions(to_queue, limit, rate)
    with connect(database_url, data_dir) as mq:
        if dry_run:
            would = mq.redrive(**selected.arguments(), to_queue=to_queue, limit=limit or NO_LIMIT, dry_run=True)
            _show_redriven(would, options, dry_run=True, as_json=as_json)
            return
        total = _count_selected(mq, selected, limit)
        if selected.matches_all and total and not yes:
            confirm(f"Redrive all {counted(total, 'dead letter')}?", "redriven")
        _redrive_all(mq, selected, options, total, as_json=as_json)


def _count_selected(mq: "Skep", selected: DeadLetterFilter, limit: int | None) -> int:
    return mq.purge_dead_letters(**selected.arguments(), limit=limit or NO_LIMIT, dry_run=True)


def _redrive_all(mq: "Skep", selected: DeadLetterFilter, options: RedriveOptions, total: int, *, as_json: bool) -> None:
    """Redrive `total` dead letters at most, so that messages that fail again are not redriven in a loop."""
    redriven: list[Redriven] = []
    start = time.monotonic()
    try:
        with progress("redriving", total) as advance:
            while len(redriven) < total:
                limit = min(options.batch, total - len(redriven))
                done = mq.redrive(**selected.arguments(), to_queue=options.to_queue, limit=limit)
                redriven += done
                advance(len(done))
                if len(done) < limit:
                    break  # another process has redriven or purged the rest
                if options.rate is not None and len(redriven) < total:
                    time.sleep(max(0, start + len(redriven) / options.rate - time.monotonic()))
    finally:  # also after Ctrl-C: these are redriven already
        _show_redriven(redriven, options, dry_run=False, as_json=as_json)


def _show_redriven(redriven: list[Redriven], options: RedriveOptions, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        show_json({"redriven": 0 if dry_run else len(redriven), "dry_run": dry_run, "letters": redriven})
        return
    if redriven:
        counts = Counter((each.queue, each.group) for each in redriven)
        rows = ((queue, group, number, _target(queue, group, options)) for (queue, group), number in counts.items())
        show_table(("queue", "group", "dead letters", "target"), rows)
    say(f"{counted(len(redriven), 'dead letter')} {'would be redriven' if dry_run else 'redriven'}")


def _target(queue: str, group: str, options: RedriveOptions) -> str:
    return f"{queue}, only for {group}" if options.to_queue is None else f"{options.to_queue}, for all its groups"


@dead_letter_app.command()
def purge(
    queue: QueueFilter = None,
    group: GroupFilter = None,
    error: ErrorFilter = None,
    since: Since = None,
    until: Until = None,
    ids: Ids = None,
    limit: MaxLetters = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete dead letters, oldest first."""
    selected = DeadLetterFilter.parse(queue, group, error, since, until, ids)
    with connect(database_url, data_dir) as mq:
        total = _count_selected(mq, selected, limit)
        if total and not (yes or dry_run):
            which = "all" if selected.matches_all else "the selected"
            confirm(f"Purge {which} {counted(total, 'dead letter')}?", "purged")
        purged = 0 if dry_run else _purge_all(mq, selected, total)
    if as_json:
        show_json({"purged": purged, "dry_run": dry_run, "matching": total})
    elif dry_run:
        say(f"{counted(total, 'dead letter')} would be purged")
    else:
        say(f"{counted(purged, 'dead letter')} purged")


def _purge_all(mq: "Skep", selected: DeadLetterFilter, total: int) -> int:
    purged = 0
    with progress("purging", total) as advance:
        while purged < total:
            done = mq.purge_dead_letters(**selected.arguments(), limit=min(BATCH, total - purged))
            purged += done
            advance(done)
            if not done:
                break
    return purged


@dead_letter_app.command()
def audit(
    limit: ListLimit = 100, as_json: Json = False, database_url: DatabaseUrl = None, data_dir: DataDir = None
) -> None:
    """Show who redrove or purged which dead letters."""
    with connect(database_url, data_dir) as mq:
        entries = mq.dead_letter_audit(limit)
    if as_json:
        show_json(entries)
        return
    headers = ("when", "action", "by", "dead letter", "group", "message", "to", "error")
    show_table(headers, (_audit_row(entry) for entry in entries))


def _audit_row(entry: DeadLetterAudit) -> tuple[Cell, ...]:
    address = f"{entry.queue}/{entry.partition} #{entry.offset}"
    done = (entry.done_at, entry.action, entry.done_by, str(entry.dead_letter_id))
    return *done, entry.group, address, entry.to_queue, entry.error
