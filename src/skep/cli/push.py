"""`skep push`: messages from the arguments, or one per line from standard input."""

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

from skep.cli.connect import connect
from skep.cli.report import errors
from skep.cli.show import as_dict, counted, one_line, say, show_json
from skep.config import Config
from skep.errors import InvalidArgument, MessagesRefused, SkepError
from skep.message import DEFAULT_PARTITION, NewMessage, Receipt

if TYPE_CHECKING:
    from skep.client.sync.buffer import Buffer
    from skep.client.sync.queue import Queue

NOT_JSON = "a string needs quotes of its own, such as '\"hello\"'; --text pushes anything as a string"
SHOW_EVERY = 1000
SHOWN_SIZE = 200


@dataclass(frozen=True, slots=True)
class Template:
    """What the options say about every message, and whether payloads are JSON or any text."""

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

    def read(self, place: str, text: str) -> object:
        return text if self.text else parse_payload(place, text)


@dataclass(slots=True)
class Progress:
    """How many messages were pushed, or are in the buffer, which loses none."""

    pushed: int = 0


def run(config: Config, queue: str, payloads: Sequence[str], template: Template, *, as_json: bool) -> None:
    from_stdin = list(payloads) in ([], ["-"])
    if "-" in payloads and not from_stdin:
        raise InvalidArgument("- stands alone: messages come from the arguments or from standard input")
    if template.transaction_id is not None and (from_stdin or len(payloads) > 1):
        hint = "one transaction id for several messages would store only the first of them"
        raise InvalidArgument("--transaction-id needs exactly one payload", hint=hint)
    if from_stdin:
        _push_stdin(config, queue, template, as_json=as_json)
    else:
        _push_arguments(config, queue, payloads, template, as_json=as_json)


def parse_headers(headers: Sequence[str]) -> dict[str, Any] | None:
    """Read KEY=VALUE; values are texts."""
    pairs = [header.partition("=") for header in headers]
    for key, separator, _ in pairs:
        if not (key and separator):
            raise InvalidArgument(f'"{one_line(key)}" is not a header', hint="--header KEY=VALUE")
    return {key: value for key, _, value in pairs} or None


def parse_payload(place: str, text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidArgument(f"{place} is not JSON: {error.msg}, character {error.pos + 1}", hint=NOT_JSON) from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{place} is not JSON: {error}", hint=NOT_JSON) from error


def _refuse_constant(word: str) -> None:
    raise ValueError(f"there is no {word} in it")


def _push_arguments(config: Config, queue: str, payloads: Sequence[str], template: Template, *, as_json: bool) -> None:
    values = [template.read(f"payload {number}", text) for number, text in enumerate(payloads, 1)]
    messages = [template.message(value) for value in values]
    with connect(config) as mq:
        receipts = mq.queue(queue).push_many(messages)
    if as_json:
        show_json([as_dict(receipt) for receipt in receipts])
    else:
        for receipt in receipts:
            say(_receipt_line(f"{queue}/{template.partition}", receipt))


def _receipt_line(place: str, receipt: Receipt) -> str:
    if receipt.due_at is not None:
        return (
            f"{receipt.status} {one_line(place)} until {receipt.due_at.astimezone():%Y-%m-%d %H:%M:%S}, id {receipt.id}"
        )
    return f"{receipt.status} {one_line(place)} #{receipt.offset}, id {receipt.id}"


def _push_stdin(config: Config, queue: str, template: Template, *, as_json: bool) -> None:
    if sys.stdin.isatty():
        errors.print("Type one message per line; Ctrl-D ends.", style="dim")
    progress = Progress()
    with connect(config) as mq, _explained(progress):
        _push_lines(mq.queue(queue), _read_lines(sys.stdin.buffer, template), template, progress)
    if as_json:
        show_json({"queue": queue, "pushed": progress.pushed})
    else:
        say(f"{counted(progress.pushed, 'message')} pushed to {one_line(queue)}")


def _push_lines(queue: "Queue", lines: Generator[tuple[str, object]], template: Template, progress: Progress) -> None:
    """Push the first by itself, so that one who may not push learns it: a buffer would try for ever."""
    with _counter() as show, queue.buffer() as buffer:
        for place, payload in lines:
            _push_line(place, payload, buffer if progress.pushed else queue, template)
            progress.pushed += 1
            if progress.pushed % SHOW_EVERY == 0:
                show(f"{progress.pushed:,} messages")


@contextmanager
def _counter() -> Generator[Callable[[str], None]]:
    """Show progress on a terminal, unless that is where the messages are typed."""
    if sys.stdin.isatty():
        yield lambda _: None
    else:
        with errors.status("0 messages") as status:
            yield status.update


def _read_lines(stdin: BinaryIO, template: Template) -> Generator[tuple[str, object]]:
    """Yield payloads and where they are. Empty lines are skipped, as files tend to have some; as texts they count."""
    for number, line in enumerate(stdin, 1):
        place = f"line {number:,}"
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{place} is not UTF-8: {error.reason}") from error
        if template.text or text.strip():
            yield place, template.read(place, text)


def _push_line(place: str, payload: object, target: "Queue | Buffer", template: Template) -> None:
    try:
        target.push(
            payload,
            partition=template.partition,
            headers=template.headers,
            delay=template.delay,
            deliver_at=template.deliver_at,
        )
    except MessagesRefused:  # others, that were pushed before
        raise
    except InvalidArgument as error:
        error.message = f"{place}: {error.message.removeprefix('item 0: ')}"
        raise


@contextmanager
def _explained(progress: Progress) -> Generator[None]:
    """Say what became of the other lines."""
    try:
        yield
    except MessagesRefused as error:
        first, reason = error.refused[0]
        error.message = f"{counted(len(error.refused), 'message')} refused: {reason.message}"
        error.detail = f"{first[:SHOWN_SIZE]}; of the {counted(progress.pushed, 'message')} read, the others are pushed"
        raise
    except SkepError as error:
        if progress.pushed:
            error.detail = f"pushed before it: {counted(progress.pushed, 'message')}"
        raise
