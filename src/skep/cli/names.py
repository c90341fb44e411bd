"""Names to complete: of queues and groups, if the database is there and answers at once; else none."""

import re
from typing import LiteralString

import psycopg
import typer

from skep import embedded
from skep.config import Config
from skep.errors import SkepError

PATIENCE = 2  # seconds; the least that libpq waits
MOST = 100
PLAIN = re.compile(r"[\w.:@/+-]+")  # a shell takes it as one word
QUEUES = "SELECT name FROM skep.queues WHERE starts_with(name, %s) ORDER BY name LIMIT %s"
GROUPS = """
    SELECT name FROM (SELECT group_name FROM skep.group_queues UNION SELECT group_name FROM skep.subscriptions) g (name)
    WHERE starts_with(name, %s) ORDER BY name LIMIT %s
"""


def find(ctx: typer.Context, query: LiteralString, beginning: str) -> list[str]:
    """Ask the database that the command would use. The embedded one is not started for it."""
    try:
        config = Config.load_client(ctx.params.get("database_url"), ctx.params.get("data_dir"))
        url = config.database_url or embedded.running_url(config.data_dir)
        if url is None:
            return []
        options = f"-c statement_timeout={PATIENCE * 1000}"
        with psycopg.connect(url, connect_timeout=PATIENCE, prepare_threshold=None, options=options) as connection:
            names = [name for (name,) in connection.execute(query, [beginning, MOST])]
    except (SkepError, psycopg.Error):
        return []
    return [name for name in names if PLAIN.fullmatch(name)]
