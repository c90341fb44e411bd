"""`skep serve`: the server, a database with Skep in it and its upkeep, until Ctrl-C or SIGTERM."""

import shlex
import shutil
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from skep import embedded
from skep.cli.report import describe
from skep.cli.upkeep import in_background
from skep.config import Config, display_database_url
from skep.embedded import binaries
from skep.engine.install import install
from skep.errors import EmbeddedError
from skep.server.http.log import write_log
from skep.server.run import listen
from skep.server.run import run as serve

FIRST_MESSAGE = """\
curl {url}/api/v1/push -d '{{"items": [{{"queue": "orders", "payload": {{"id": 1}}}}]}}'
curl '{url}/api/v1/pop/queue/orders?autoAck=true'"""


def run(config: Config) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for stop in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: a shell starts background jobs with it ignored
        signal.signal(stop, signal.default_int_handler)
    write_log(config)
    try:
        with listen(config) as listening, _database(config) as (url, data_dir):
            done = describe(install(url, data_dir=data_dir))
            port = listening.getsockname()[1]
            _welcome(console, config, port, display_database_url(url) if config.database_url else url, done)
            with in_background(config, url):
                serve(replace(config, database_url=url), listening)
    except KeyboardInterrupt:
        pass
    console.print("Skep has stopped.")


@contextmanager
def _database(config: Config) -> Generator[tuple[str, Path | None]]:
    """Give the URL of the database, and the data folder if it is the embedded one."""
    if config.database_url is not None:
        yield config.database_url, None
        return
    with embedded.start(config.data_dir) as server:
        yield server.url, server.data_dir


def _welcome(console: Console, config: Config, port: int, url: str, done: str) -> None:
    """Say how to use it; commands stand outside of the frame, so that they can be copied whole."""
    scheme = "https" if config.tls_cert else "http"
    here = "localhost" if config.host in ("127.0.0.1", "0.0.0.0", "::", "::1") else config.host  # noqa: S104
    address = f"{scheme}://{here}:{port}"
    console.print(Panel(f"{address}    {done}", title="Skep is ready", expand=False, padding=(1, 2)))
    console.print("A first message over HTTP:", style="bold")
    for line in FIRST_MESSAGE.format(url=address).splitlines():
        console.print(f"  {line}", markup=False)
    console.print("In psql:", style="bold")
    console.print(f"  {_psql(url)}", markup=False)
    console.print("From Python, and any other client of PostgreSQL:", style="bold")
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
