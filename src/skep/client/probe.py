"""The first look at a database, so that what is wrong with it is said at once."""

import psycopg

from skep.engine.install import patience, verify
from skep.errors import explained


def probe(url: str) -> bool:
    """Refuse a database without this schema; tell whether sessions are ours, with no PgBouncer in between."""
    with (
        explained(),
        psycopg.connect(
            url, autocommit=True, prepare_threshold=None, application_name="skep", connect_timeout=patience(url)
        ) as connection,
    ):
        verify(connection)
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        return row == (connection.info.backend_pid,)
