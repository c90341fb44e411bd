"""Completion of queue and group names. There are none if the database does not respond quickly."""

import re
from typing import LiteralString

import psycopg
import typer

from skep import embedded
from skep.config import Config
from skep.errors import SkepError

TIMEOUT = 2  # seconds; libpq does not wait less
MAX_NAMES = 100
PLAIN = re.compile(r"[\w.:@/+-]+")  # a shell reads such a name as one word
QUEUES = "SELECT name FROM skep.queues WHERE starts_with(name, %s) ORDER BY name LIMIT %s"
GROUPS = """
    SELECT name FROM (SELECT group_name FROM skep.group_queues UNION SELECT group_name FROM skep.subscriptions) g (name)
    WHERE starts_with(name, %s) ORDER BY name LIMIT %s
"""


def find_names(ctx: typer.Context, query: LiteralString, prefix: str) -> list[str]:
    """Query the database that the command would use. The embedded PostgreSQL is not started for it."""
    try:
        config = Config.load_client(ctx.params.get("database_url"), ctx.params.get("data_dir"))
        url = config.database_url or embedded.running_url(config.data_dir)
        if url is None:
            return []
        options = f"-c statement_timeout={TIMEOUT * 1000}"
        with psycopg.connect(url, connect_timeout=TIMEOUT, prepare_threshold=None, options=options) as connection:
            names = [name for (name,) in connection.execute(query, [prefix, MAX_NAMES])]
    except (SkepError, psycopg.Error):
        return []
    return [name for name in names if PLAIN.fullmatch(name)]
