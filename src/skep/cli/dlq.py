"""`skep dlq`: what groups have given up, driving it again and purging it."""

import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from skep import Skep
from skep.cli.ask import confirm
from skep.cli.chart import bar
from skep.cli.connect import connect
from skep.cli.progress import progress
from skep.cli.show import Cell, as_dict, compact, counted, say, show_json, show_table
from skep.cli.times import parse_time
from skep.config import Config
from skep.message import DeadLetter, DeadLetterAudit, Redriven

ANY_NUMBER = 2**31 - 1
AT_ONCE = 1000  # in one transaction


@dataclass(frozen=True, slots=True)
class Filter:
    """The dead letters a command is about; None is any."""

    queue: str | None = None
    group: str | None = None
    error: str | None = None
    failed_after: datetime | None = None
    failed_before: datetime | None = None
    ids: list[int] | None = None

    @classmethod
    def of(
        cls,
        queue: str | None,
        group: str | None,
        error: str | None,
        since: str | None,
        until: str | None,
        ids: list[int] | None = None,
    ) -> Self:
        """Read the times; no ids is any."""
        return cls(queue, group, error, parse_time(since), parse_time(until), ids or None)

    @property
    def everything(self) -> bool:
        return self == Filter()

    def arguments(self) -> dict[str, Any]:
        return as_dict(self)


def list_dead_letters(config: Config, wanted: Filter, *, limit: int, as_json: bool) -> None:
    arguments = wanted.arguments()
    del arguments["ids"]
    with connect(config) as mq:
        letters = mq.dead_letters(**arguments, limit=limit)
    if as_json:
        show_json(letters)
        return
    headers = ("id", "failed", "group", "message", "attempts", "error", "payload")
    show_table(headers, (_row(letter) for letter in letters))


def _row(letter: DeadLetter) -> tuple[Cell, ...]:
    place = f"{letter.queue}/{letter.partition} #{letter.offset}"
    return str(letter.id), letter.failed_at, letter.group, place, letter.attempts, letter.error, compact(letter.payload)


def count(config: Config, wanted: Filter, *, as_json: bool) -> None:
    times = {"failed_after": wanted.failed_after, "failed_before": wanted.failed_before}
    with connect(config) as mq:
        counts = mq.count_dead_letters(wanted.queue, wanted.group, **times)
    if as_json:
        show_json(counts)
        return
    most = max((each.letters for each in counts), default=0)
    headers = ("letters", "", "error", "queue", "group", "last")
    rows = (
        (each.letters, bar(each.letters, most), each.error, each.queue, each.group, each.last_failed_at)
        for each in counts
    )
    show_table(headers, rows)


@dataclass(frozen=True, slots=True)
class Drive:
    """Where dead letters go, how many at most and how fast."""

    to_queue: str | None
    limit: int | None
    rate: float | None

    @property
    def at_once(self) -> int:
        """Let a slow drive be even: no more at a time than half a second's worth."""
        return AT_ONCE if self.rate is None else max(1, min(AT_ONCE, int(self.rate / 2)))


def redrive(config: Config, wanted: Filter, drive: Drive, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    with connect(config) as mq:
        if dry_run:
            _show_driven(_would_drive(mq, wanted, drive), drive, dry_run=True, as_json=as_json)
            return
        total = _count(mq, wanted, drive.limit)
        if wanted.everything and total and not yes:
            confirm(f"Drive all dead letters, {total:,}, again?", "redriven")
        _drive_all(mq, wanted, drive, total, as_json=as_json)


def _would_drive(mq: Skep, wanted: Filter, drive: Drive) -> list[Redriven]:
    limit = drive.limit or ANY_NUMBER
    return mq.redrive(**wanted.arguments(), to_queue=drive.to_queue, limit=limit, dry_run=True)


def _count(mq: Skep, wanted: Filter, limit: int | None) -> int:
    return mq.purge_dead_letters(**wanted.arguments(), limit=limit or ANY_NUMBER, dry_run=True)


def _drive_all(mq: Skep, wanted: Filter, drive: Drive, total: int, *, as_json: bool) -> None:
    """No more than there were at the start: what fails again in the meantime is not driven in circles."""
    driven: list[Redriven] = []
    begin = time.monotonic()
    try:
        with progress("redriving", total) as advance:
            while len(driven) < total:
                limit = min(drive.at_once, total - len(driven))
                done = mq.redrive(**wanted.arguments(), to_queue=drive.to_queue, limit=limit)
                driven += done
                advance(len(done))
                if len(done) < limit:
                    break  # others drive them too
                if drive.rate is not None and len(driven) < total:
                    time.sleep(max(0, begin + len(driven) / drive.rate - time.monotonic()))
    finally:  # also when it is stopped: these are driven
        _show_driven(driven, drive, dry_run=False, as_json=as_json)


def _show_driven(driven: list[Redriven], drive: Drive, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        show_json({"redriven": 0 if dry_run else len(driven), "dry_run": dry_run, "letters": driven})
        return
    if driven:
        places = Counter((letter.queue, letter.group) for letter in driven)
        headers = ("queue", "group", "letters", "go to")
        show_table(headers, ((*place, number, _target(place, drive)) for place, number in places.items()))
    say(f"{counted(len(driven), 'dead letter')} {'would be redriven' if dry_run else 'redriven'}")


def _target(place: tuple[str, str], drive: Drive) -> str:
    queue, group = place
    return f"{queue}, for {group} alone" if drive.to_queue is None else f"{drive.to_queue}, for all its groups"


def purge(config: Config, wanted: Filter, limit: int | None, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    with connect(config) as mq:
        total = _count(mq, wanted, limit)
        if total and not (yes or dry_run):
            which = "all dead letters, " if wanted.everything else "the dead letters that match, "
            confirm(f"Purge {which}{total:,}?", "purged")
        purged = 0 if dry_run else _purge_all(mq, wanted, total)
    if as_json:
        show_json({"purged": purged, "dry_run": dry_run, "matching": total})
    else:
        say(
            f"{counted(total, 'dead letter')} would be purged"
            if dry_run
            else f"{counted(purged, 'dead letter')} purged"
        )


def _purge_all(mq: Skep, wanted: Filter, total: int) -> int:
    purged = 0
    with progress("purging", total) as advance:
        while purged < total:
            done = mq.purge_dead_letters(**wanted.arguments(), limit=min(AT_ONCE, total - purged))
            purged += done
            advance(done)
            if not done:
                break
    return purged


def audit(config: Config, *, limit: int, as_json: bool) -> None:
    with connect(config) as mq:
        entries = mq.dead_letter_audit(limit)
    if as_json:
        show_json(entries)
        return
    headers = ("when", "action", "by", "letter", "group", "message", "to", "error")
    show_table(headers, (_audit_row(entry) for entry in entries))


def _audit_row(entry: DeadLetterAudit) -> tuple[Cell, ...]:
    place = f"{entry.queue}/{entry.partition} #{entry.offset}"
    start = (entry.done_at, entry.action, entry.done_by, str(entry.dead_letter_id))
    return *start, entry.group, place, entry.to_queue, entry.error
