"""Check of the database at the first connection, so that the caller gets a clear error at once."""

import psycopg

from skep.engine.install import patience, verify
from skep.errors import explained


def check_database(url: str) -> bool:
    """Raise if the database does not have this version of the schema. Return False if PgBouncer is in between."""
    with (
        explained(),
        psycopg.connect(
            url, autocommit=True, prepare_threshold=None, application_name="skep", connect_timeout=patience(url)
        ) as connection,
    ):
        verify(connection)
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        return row == (connection.info.backend_pid,)
