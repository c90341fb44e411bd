"""Connections of the caller: recognise their library and translate its errors without importing it."""

import psycopg

from skep.errors import SkepError, from_sqlstate

SUPPORTED = "a psycopg connection, a SQLAlchemy session or connection, or a Django connection"
MATCHING = "Use asynchronous connections with AsyncSkep and synchronous connections with Skep."


def is_sqlalchemy(connection: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "sqlalchemy" for kind in type(connection).__mro__)


def explain(error: Exception) -> SkepError | None:
    """Translate the driver's error inside an ORM's error: SQLAlchemy keeps it in `orig`, Django as the cause."""
    for candidate in (error, getattr(error, "orig", None), error.__cause__):
        if isinstance(candidate, psycopg.Error):
            return from_sqlstate(candidate)
    return None
