"""Encode messages as JSON for the SQL functions. Errors name the item that cannot be encoded."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from skep.errors import InvalidArgument
from skep.message import DEFAULT_PARTITION, NewMessage

HINT = "Payloads and headers must be JSON: dict, list, str, int, float, bool or None, without NaN and NUL characters."


def as_object(queue: str, message: object, producer: str | None) -> dict[str, Any]:
    """Return a message or a payload as an item of `skep.push(messages)`, without fields that have their default."""
    if not isinstance(message, NewMessage):
        item: dict[str, Any] = {"queue": queue, "payload": message}
        return item if producer is None else item | {"producer": producer}
    item = {"queue": queue, "payload": message.payload}
    if message.partition != DEFAULT_PARTITION:
        item["partition"] = message.partition
    if message.transaction_id is not None:
        item["transaction_id"] = message.transaction_id
    if message.headers is not None:
        item["headers"] = _headers(message.headers)
    if message.trace_id is not None:
        item["trace_id"] = str(message.trace_id)
    if producer is not None:
        item["producer"] = producer
    return item | _due(message) if message.delay is not None or message.deliver_at is not None else item


def _due(message: NewMessage) -> dict[str, object]:
    due = {"delay": _seconds(message.delay), "deliver_at": _instant(message.deliver_at)}
    return {key: value for key, value in due.items() if value is not None}


def _seconds(delay: object) -> object:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


def _instant(deliver_at: object) -> object:
    if not isinstance(deliver_at, datetime):
        return deliver_at  # push raises the error
    if deliver_at.tzinfo is None:
        hint = "For example datetime.now(UTC) + timedelta(hours=1). Or pass a delay."
        raise InvalidArgument(f"deliver_at must have a time zone, got {deliver_at.isoformat()}", hint=hint)
    return deliver_at.isoformat()


def _headers(headers: object) -> object:
    return (
        dict(cast("Mapping[str, object]", headers)) if isinstance(headers, Mapping) else headers
    )  # push raises the error


def dumps(items: Sequence[object]) -> str:
    """Return a list as JSON. The error names the item that cannot be encoded."""
    try:
        text = _write(items)
    except (TypeError, ValueError, RecursionError) as error:
        raise _error_of_item(items, error) from error
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
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def _error_of_item(items: Sequence[object], error: Exception) -> InvalidArgument:
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
                f"item {number}: a string contains a NUL character, which PostgreSQL cannot store", hint=HINT
            )


def _texts(value: object) -> Iterable[str]:
    left = [value]
    while left:  # a loop, because JSON may be nested deeper than Python's recursion limit
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            for pair in cast("Mapping[object, object]", value).items():
                left += pair
        elif isinstance(value, (list, tuple)):
            left += cast("Sequence[object]", value)


def describe(error: object) -> str:
    """Return the text that is stored with a failure. It never raises an error itself."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # its __str__ is broken
        return name
    if isinstance(error, BaseException):
        text = f"{name}: {text}" if text else name
    return text.replace("\0", "").encode(errors="replace").decode()[:10_000]
