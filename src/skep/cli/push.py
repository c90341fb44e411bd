"""`skep push`: push messages from the arguments, or one per line of standard input."""

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from skep.cli.connect import connect
from skep.cli.options import DatabaseUrl, DataDir, Headers, Json, Queue
from skep.cli.show import as_dict, clock, counted, error_console, note, one_line, say, show_json
from skep.cli.times import parse_due_time, parse_duration
from skep.errors import InvalidArgument, MessagesRefused, SkepError
from skep.message import DEFAULT_PARTITION, NewMessage, Receipt

if TYPE_CHECKING:
    from skep import Skep
    from skep.client.sync.buffer import Buffer
    from skep.client.sync.queue import Queue as ClientQueue

NOT_JSON = "a JSON string needs its own quotes, such as '\"hello\"'; --text pushes any text as a string"
SHOW_EVERY = 1000
SHOWN_SIZE = 200


@dataclass(frozen=True, slots=True)
class PushOptions:
    """The options that apply to every message of a push."""

    partition: str = DEFAULT_PARTITION
    transaction_id: str | None = None
    headers: dict[str, Any] | None = None
    text: bool = False
    delay: timedelta | None = None
    deliver_at: datetime | None = None

    def message(self, payload: object) -> NewMessage:
        return NewMessage(
            payload,
            self.partition,
            self.transaction_id,
            self.headers,
            delay=self.delay,
            deliver_at=self.deliver_at,
        )

    def parse(self, source: str, text: str) -> object:
        return text if self.text else parse_payload(source, text)


@dataclass(slots=True)
class PushCount:
    """The number of messages that were pushed or buffered. The buffer pushes them even if a later line fails."""

    pushed: int = 0


def push(
    queue: Queue,
    payloads: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PAYLOAD]...",
            help="JSON values. Without any, or with -, one JSON value per line of standard input.",
            show_default=False,
        ),
    ] = None,
    partition: Annotated[str, typer.Option(help="The partition of the messages.")] = DEFAULT_PARTITION,
    transaction_id: Annotated[
        str | None, typer.Option(help="Dedup key: a message with the same key is stored once.", show_default=False)
    ] = None,
    header: Headers = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver after this time: 30m, 2h, 1d.", show_default=False)
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver at this time.", show_default=False)
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Push each payload as a string, not as JSON.")] = False,
    as_json: Json = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Push messages to a queue."""
    length, due_at = None if delay is None else parse_duration(delay), parse_due_time(deliver_at)
    options = PushOptions(partition, transaction_id, parse_headers(header or []), text, length, due_at)
    texts = payloads or []
    from_stdin = texts in ([], ["-"])
    _check_source(texts, transaction_id, from_stdin=from_stdin)
    values = [] if from_stdin else [options.parse(f"payload {number}", each) for number, each in enumerate(texts, 1)]
    if from_stdin and sys.stdin.isatty():
        note("Type one message per line. Ctrl-D ends the input.")
    with connect(database_url, data_dir) as mq:
        if from_stdin:
            _push_stdin(mq, queue, options, as_json=as_json)
        else:
            _push_values(mq, queue, values, options, as_json=as_json)


def _check_source(payloads: Sequence[str], transaction_id: str | None, *, from_stdin: bool) -> None:
    if "-" in payloads and not from_stdin:
        raise InvalidArgument("- cannot be combined with other payloads", hint="use either arguments or standard input")
    if transaction_id is not None and (from_stdin or len(payloads) > 1):
        hint = "several messages with the same transaction id would be stored as one"
        raise InvalidArgument("--transaction-id needs exactly one payload", hint=hint)


def parse_headers(headers: Sequence[str]) -> dict[str, Any] | None:
    """Parse KEY=VALUE. Values are strings."""
    pairs = [header.partition("=") for header in headers]
    for key, separator, _ in pairs:
        if not (key and separator):
            raise InvalidArgument(f'"{one_line(key)}" is not a header', hint="--header KEY=VALUE")
    return {key: value for key, _, value in pairs} or None


def parse_payload(source: str, text: str) -> object:
    """Parse JSON. `source` names the payload in an error."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{source} is not JSON: {error.msg}, character {error.pos + 1}", hint=NOT_JSON) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{source} is not JSON: {error}", hint=NOT_JSON) from error


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not allowed")


def _push_values(mq: "Skep", queue: str, values: Sequence[object], options: PushOptions, *, as_json: bool) -> None:
    receipts = mq.queue(queue).push_many([options.message(value) for value in values])
    if as_json:
        show_json([as_dict(receipt) for receipt in receipts])
    else:
        for receipt in receipts:
            say(_receipt_line(one_line(f"{queue}/{options.partition}"), receipt))


def _receipt_line(address: str, receipt: Receipt) -> str:
    if receipt.due_at is not None:
        return f"{receipt.status} {address} until {clock(receipt.due_at)}, id {receipt.id}"
    return f"{receipt.status} {address} #{receipt.offset}, id {receipt.id}"


def _push_stdin(mq: "Skep", queue: str, options: PushOptions, *, as_json: bool) -> None:
    count = PushCount()
    with _explained(count):
        _push_lines(mq.queue(queue), _read_lines(sys.stdin.buffer, options), options, count)
    if as_json:
        show_json({"queue": queue, "pushed": count.pushed})
    else:
        say(f"{counted(count.pushed, 'message')} pushed to {one_line(queue)}")


def _push_lines(
    queue: "ClientQueue", lines: Generator[tuple[str, object]], options: PushOptions, count: PushCount
) -> None:
    """Push the first line directly, so that a missing right is an error: a buffer would retry for ever."""
    with _counter() as show, queue.buffer() as buffer:
        for source, payload in lines:
            _push_line(source, payload, buffer if count.pushed else queue, options)
            count.pushed += 1
            if count.pushed % SHOW_EVERY == 0:
                show(f"{count.pushed:,} messages")


@contextmanager
def _counter() -> Generator[Callable[[str], None]]:
    """Show the progress on a terminal, unless the user types the messages there."""
    if sys.stdin.isatty():
        yield lambda _: None
    else:
        with error_console().status("0 messages") as status:
            yield status.update


def _read_lines(stdin: BinaryIO, options: PushOptions) -> Generator[tuple[str, object]]:
    """Yield the payload of each line with its line number. Empty lines are skipped unless payloads are text."""
    for number, line in enumerate(stdin, 1):
        source = f"line {number:,}"
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{source} is not UTF-8: {error.reason}") from error
        if options.text or text.strip():
            yield source, options.parse(source, text)


def _push_line(source: str, payload: object, target: "ClientQueue | Buffer", options: PushOptions) -> None:
    try:
        target.push(
            payload,
            partition=options.partition,
            headers=options.headers,
            delay=options.delay,
            deliver_at=options.deliver_at,
        )
    except MessagesRefused:  # about lines that were pushed before this one
        raise
    except InvalidArgument as error:
        error.message = f"{source}: {error.message.removeprefix('item 0: ')}"
        raise


@contextmanager
def _explained(count: PushCount) -> Generator[None]:
    """Add to an error how many of the other lines were pushed."""
    try:
        yield
    except MessagesRefused as error:
        first, reason = error.refused[0]
        error.message = f"{counted(len(error.refused), 'message')} refused: {reason.message}"
        error.detail = f"{first[:SHOWN_SIZE]}; {counted(count.pushed, 'message')} read, all others were pushed"
        raise
    except SkepError as error:
        if count.pushed:
            error.detail = f"pushed before it: {counted(count.pushed, 'message')}"
        raise
