"""What can be known of a caller's connection without importing its library."""

import psycopg

from skep.errors import SkepError, from_sqlstate

KINDS = "a psycopg connection, a SQLAlchemy session or connection, or a Django connection"
WHOSE = "Asynchronous connections belong to AsyncSkep, others to Skep."


def is_sqlalchemy(connection: object) -> bool:
    return any(kind.__module__.partition(".")[0] == "sqlalchemy" for kind in type(connection).__mro__)


def explain(error: Exception) -> SkepError | None:
    """Find the driver's error under the one of an ORM: SQLAlchemy keeps it in `orig`, Django as the cause."""
    for candidate in (error, getattr(error, "orig", None), error.__cause__):
        if isinstance(candidate, psycopg.Error):
            return from_sqlstate(candidate)
    return None
