"""Messages as the JSON that the engine's functions take. What cannot be sent is refused here, by number."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from skep.errors import InvalidArgument
from skep.message import DEFAULT_PARTITION, NewMessage

HINT = "Payloads and headers are what JSON can hold: dict, list, str, int, float, bool, None; no NaN, no NUL character."


def as_message(item: object) -> NewMessage:
    """Take a NewMessage as it is, and anything else as a payload."""
    return item if isinstance(item, NewMessage) else NewMessage(item)


def as_object(queue: str, message: NewMessage, producer: str | None) -> dict[str, Any]:
    """Return the message as `skep.push(messages)` reads it, without what has its default."""
    item: dict[str, Any] = {"queue": queue, "payload": message.payload}
    if message.partition != DEFAULT_PARTITION:
        item["partition"] = message.partition
    if message.transaction_id is not None:
        item["transaction_id"] = message.transaction_id
    if message.headers is not None:
        item["headers"] = dict(message.headers)
    if message.trace_id is not None:
        item["trace_id"] = str(message.trace_id)
    if producer is not None:
        item["producer"] = producer
    return item


def dumps(items: Sequence[object]) -> str:
    """Write a list of items; the error for one that cannot be written names it."""
    try:
        text = _write(items)
    except (TypeError, ValueError, RecursionError) as error:
        raise _blame(items, error) from error
    if "\\u0000" in text:
        _refuse_nul(items)
    return text


def _write(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_uuid)
    text.encode()  # a lone surrogate cannot be sent
    return text


def _uuid(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not something JSON can hold")


def _blame(items: Sequence[object], error: Exception) -> InvalidArgument:
    for number, item in enumerate(items):
        try:
            _write(item)
        except (TypeError, ValueError, RecursionError) as reason:
            return InvalidArgument(f"item {number}: {reason}", hint=HINT)
    return InvalidArgument(str(error), hint=HINT)


def _refuse_nul(items: Sequence[object]) -> None:
    for number, item in enumerate(items):
        if any("\0" in text for text in _texts(item)):
            raise InvalidArgument(
                f"item {number}: a text has a NUL character, which PostgreSQL cannot store", hint=HINT
            )


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[object, object]", value).items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in cast("Sequence[object]", value):
            yield from _texts(inner)


def describe(error: object) -> str:
    """Return the text a failure is stored with; it is no reason to fail again."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
    return text.replace("\0", "").encode(errors="replace").decode()[:10_000]
