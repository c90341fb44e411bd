"""Calls inside the caller's own transaction, on the caller's own connection."""

import re
from collections.abc import Mapping
from typing import Any, cast

from psycopg import AsyncConnection, AsyncCursor

from skep.client.aio import runtime
from skep.client.guest import KINDS, WHOSE, explain, is_sqlalchemy
from skep.errors import InvalidArgument


async def execute_in(connection: Any, query: str, arguments: Mapping[str, Any]) -> None:
    """Run a statement on a connection of psycopg, SQLAlchemy or Django; it commits when its owner does."""
    sqlalchemy = is_sqlalchemy(connection)
    method = getattr(connection, "execute" if sqlalchemy else "cursor", None)
    if method is None:
        raise InvalidArgument(f"cannot use {type(connection).__name__} as a connection", hint=f"Give {KINDS}.")
    if not runtime.is_ours(getattr(connection, "commit", None)):
        raise InvalidArgument(f"{type(connection).__name__} is of the other kind", hint=WHOSE)
    try:
        if sqlalchemy:
            await _by_sqlalchemy(connection, query, arguments)
        else:
            async with _cursor(connection) as cursor:
                await cursor.execute(query, arguments)
    except Exception as error:
        known = explain(error)
        if known is None:
            raise
        raise known from error


def _cursor(connection: Any) -> Any:
    """Psycopg's plain cursor: a connection may be set up to make others, which read another language (RawCursor)."""
    if isinstance(connection, AsyncConnection):
        return AsyncCursor(cast("AsyncConnection[Any]", connection))
    return connection.cursor()


async def _by_sqlalchemy(connection: Any, query: str, arguments: Mapping[str, Any]) -> None:
    from sqlalchemy import text  # noqa: PLC0415  # only who has it comes here

    await connection.execute(text(re.sub(r"%\((\w+)\)s", r":\1", query)), dict(arguments))
