"""Calls on a connection of the caller, as part of the caller's transaction."""

import re
from collections.abc import Mapping
from typing import Any, cast

from psycopg import AsyncConnection, AsyncCursor

from skep.client.aio import runtime
from skep.client.foreign_connection import MATCHING, SUPPORTED, explain, is_sqlalchemy
from skep.errors import InvalidArgument


async def execute_in(connection: Any, query: str, arguments: Mapping[str, Any]) -> None:
    """Run a statement on a connection of psycopg, SQLAlchemy or Django. The caller commits it."""
    sqlalchemy = is_sqlalchemy(connection)
    method = getattr(connection, "execute" if sqlalchemy else "cursor", None)
    if method is None:
        raise InvalidArgument(f"cannot use {type(connection).__name__} as a connection", hint=f"Pass {SUPPORTED}.")
    if not runtime.is_compatible(getattr(connection, "commit", None)):
        message = f"expected {runtime.CONNECTION_KIND}, got {type(connection).__name__}"
        raise InvalidArgument(message, hint=MATCHING)
    try:
        if sqlalchemy:
            await _execute_with_sqlalchemy(connection, query, arguments)
        else:
            async with _cursor(connection) as cursor:
                await cursor.execute(query, arguments)
    except Exception as error:
        known = explain(error)
        if known is None:
            raise
        raise known from error


def _cursor(connection: Any) -> Any:
    """Return psycopg's plain cursor: the connection's own factory may make one with other placeholders (RawCursor)."""
    if isinstance(connection, AsyncConnection):
        return AsyncCursor(cast("AsyncConnection[Any]", connection))
    return connection.cursor()


async def _execute_with_sqlalchemy(connection: Any, query: str, arguments: Mapping[str, Any]) -> None:
    from sqlalchemy import text  # noqa: PLC0415  # optional dependency

    await connection.execute(text(re.sub(r"%\((\w+)\)s", r":\1", query)), dict(arguments))
