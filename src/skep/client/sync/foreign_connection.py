# Generated from src/skep/client/aio/foreign_connection.py by `make format`. Change that file.
"""Calls on a connection of the caller, as part of the caller's transaction."""

import re
from collections.abc import Mapping
from typing import Any, cast

from psycopg import Connection, Cursor

from skep.client.foreign_connection import MATCHING, SUPPORTED, explain, is_sqlalchemy
from skep.client.sync import runtime
from skep.errors import InvalidArgument


def execute_in(connection: Any, query: str, arguments: Mapping[str, Any]) -> None:
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
            _execute_with_sqlalchemy(connection, query, arguments)
        else:
            with _cursor(connection) as cursor:
                cursor.execute(query, arguments)
    except Exception as error:
        known = explain(error)
        if known is None:
            raise
        raise known from error


def _cursor(connection: Any) -> Any:
    """Return psycopg's plain cursor: the connection's own factory may make one with other placeholders (RawCursor)."""
    if isinstance(connection, Connection):
        return Cursor(cast("Connection[Any]", connection))
    return connection.cursor()


def _execute_with_sqlalchemy(connection: Any, query: str, arguments: Mapping[str, Any]) -> None:
    from sqlalchemy import text  # noqa: PLC0415  # optional dependency

    connection.execute(text(re.sub(r"%\((\w+)\)s", r":\1", query)), dict(arguments))
