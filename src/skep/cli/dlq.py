"""`skep dlq`: what groups have given up."""

from skep.cli.connect import connect
from skep.cli.show import Cell, compact, show_json, show_table
from skep.config import Config
from skep.message import DeadLetter


def list_dead_letters(config: Config, queue: str | None, group: str | None, *, limit: int, as_json: bool) -> None:
    with connect(config) as mq:
        letters = mq.dead_letters(queue, group, limit=limit)
    if as_json:
        show_json(letters)
        return
    headers = ("id", "failed", "group", "message", "attempts", "error", "payload")
    show_table(headers, (_row(letter) for letter in letters))


def _row(letter: DeadLetter) -> tuple[Cell, ...]:
    place = f"{letter.queue}/{letter.partition} #{letter.offset}"
    return str(letter.id), letter.failed_at, letter.group, place, letter.attempts, letter.error, compact(letter.payload)
