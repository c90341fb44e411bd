"""`skep serve`: a database with Skep in it and its upkeep, until Ctrl-C or SIGTERM."""

import shlex
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.panel import Panel

from skep import embedded
from skep.cli.report import describe
from skep.cli.upkeep import in_background
from skep.config import Config, display_database_url
from skep.embedded import binaries
from skep.engine.install import install
from skep.errors import EmbeddedError

FIRST_MESSAGE = """\
SELECT * FROM skep.push('orders', '{"id": 1}');
SELECT payload, lease FROM skep.pop('orders') \\gset
\\echo got :payload
SELECT skep.ack(:'lease');"""


def run(config: Config) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for stop in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell starts background jobs with it ignored
        signal.signal(stop, signal.default_int_handler)
    try:
        with _database(config) as url:
            done = describe(install(url))
            _welcome(console, display_database_url(url) if config.database_url else url, done)
            with in_background(url):
                while True:
                    signal.pause()
    except KeyboardInterrupt:
        console.print("Skep has stopped.")


@contextmanager
def _database(config: Config) -> Generator[str]:
    if config.database_url is not None:
        yield config.database_url
        return
    with embedded.start(config.data_dir) as server:
        yield server.url


def _welcome(console: Console, url: str, done: str) -> None:
    """Say how to use it; commands stand outside of the frame, so that they can be copied whole."""
    console.print(Panel(FIRST_MESSAGE, title=f"Skep is ready: {done}", expand=False, padding=(1, 2)))
    console.print("In psql:", style="bold")
    console.print(f"  {_psql(url)}", markup=False)
    console.print("From Python, or any other language:", style="bold")
    console.print(f"  {url}", markup=False)
    console.print("Ctrl-C stops it.", style="dim")


def _psql(url: str) -> str:
    """Return a command that opens the database: the psql of the machine, the one beside the server, or else Python."""
    if shutil.which("psql"):
        return shlex.join(["psql", url])
    with suppress(EmbeddedError):
        bundled = binaries.find(None, None).bin_dir / "psql"
        if bundled.exists():
            return shlex.join([str(bundled), url])
    code = f"import psycopg; print(*psycopg.connect({url!r}, autocommit=True).execute(input('SQL: ')), sep='\\n')"
    return shlex.join([sys.executable, "-c", code])
